// Answers with a draw from every source of keys and ids that it has, all of which drew before the snapshot.
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	crand "crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"math/big"
	"math/rand"
	v2 "math/rand/v2"
	"net"
	"net/http"
	"os"

	"github.com/google/uuid"
	"github.com/oklog/ulid/v2"
)

var seeded = v2.New(v2.NewPCG(1, 2))
var chacha = v2.NewChaCha8([32]byte{42})

// A secret of a connection, of which client and server have drawn a part each.
func ofTLS() string {
	key, _ := ecdsa.GenerateKey(elliptic.P256(), crand.Reader)
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	certificate, _ := x509.CreateCertificate(crand.Reader, template, template, &key.PublicKey, key)
	own := tls.Certificate{Certificate: [][]byte{certificate}, PrivateKey: key}
	near, far := net.Pipe()
	client := tls.Client(near, &tls.Config{InsecureSkipVerify: true})
	go tls.Server(far, &tls.Config{Certificates: []tls.Certificate{own}, SessionTicketsDisabled: true}).Handshake()
	if err := client.Handshake(); err != nil {
		return err.Error()
	}
	state := client.ConnectionState()
	secret, _ := state.ExportKeyingMaterial("unlike", nil, 8)
	return hex.EncodeToString(secret)
}

func draw() map[string]any {
	bytes := make([]byte, 8)
	crand.Read(bytes)
	key, _ := ecdsa.GenerateKey(elliptic.P256(), crand.Reader)
	secret, _ := key.Bytes()
	return map[string]any{
		"math/rand":             rand.Uint64(),
		"math/rand/v2":          v2.Uint64(),
		"v2.NewPCG(1, 2)":       seeded.Uint64(),
		"v2.NewChaCha8":         chacha.Uint64(),
		"crypto/rand":           hex.EncodeToString(bytes),
		"ecdsa":                 hex.EncodeToString(secret),
		"crypto/rand.Text":      crand.Text(),
		"math/rand/v2.Perm":     v2.Perm(40),
		"math/rand.NormFloat64": rand.NormFloat64(),
		"crypto/tls":            ofTLS(),
		"google/uuid":           uuid.NewString(),
		"oklog/ulid.Make":       hex.EncodeToString(ulid.Make().Entropy()),
	}
}

func main() {
	// Of every thread.
	for range 32 {
		go func() {
			for range 1000 {
				v2.Uint64()
			}
		}()
	}
	draw()
	http.HandleFunc("/", func(answer http.ResponseWriter, _ *http.Request) {
		json.NewEncoder(answer).Encode(draw())
	})
	http.ListenAndServe("127.0.0.1:"+os.Getenv("PORT"), nil)
}
