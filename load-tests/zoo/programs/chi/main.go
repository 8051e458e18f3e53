// Items in bbolt, by chi.
package main

import (
	"fmt"
	"log"
	"net/http"
	"os"

	"github.com/go-chi/chi/v5"
	"go.etcd.io/bbolt"
)

func main() {
	database, err := bbolt.Open("/tmp/items.db", 0o600, nil)
	if err != nil {
		log.Fatal(err)
	}
	bucket := []byte("items")
	router := chi.NewRouter()
	router.Get("/", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hello of chi") })
	router.Get("/items", func(w http.ResponseWriter, r *http.Request) {
		database.View(func(tx *bbolt.Tx) error {
			if b := tx.Bucket(bucket); b != nil {
				return b.ForEach(func(key, _ []byte) error { _, err := fmt.Fprintf(w, "%s\n", key); return err })
			}
			return nil
		})
	})
	router.Post("/items/{name}", func(w http.ResponseWriter, r *http.Request) {
		err := database.Update(func(tx *bbolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists(bucket)
			if err != nil {
				return err
			}
			return b.Put([]byte(chi.URLParam(r, "name")), []byte("here"))
		})
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Getenv("PORT"), router))
}
