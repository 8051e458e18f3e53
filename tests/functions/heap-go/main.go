// Go's heap under stress: objects from before the snapshot among new ones, collected and given back to the kernel.
package main

import (
	"fmt"
	"log"
	"math/rand"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
)

const (
	objects    = 20000
	goroutines = 4
	rounds     = 60000
)

type object struct {
	seed  byte
	bytes []byte
	next  *object
}

// heap is one goroutine's.
type heap map[int]*object

func make1(random *rand.Rand) *object {
	size := 16 + random.Intn(400)
	if random.Intn(100) == 0 {
		size = random.Intn(200_000) + 1
	}
	o := &object{seed: byte(random.Intn(256)), bytes: make([]byte, size)}
	for i, b := range o.bytes {
		if b != 0 {
			log.Fatalf("fresh memory holds %d", b)
		}
		o.bytes[i] = o.seed + byte(i*7)
	}
	return o
}

func (o *object) whole() bool {
	for i, b := range o.bytes {
		if b != o.seed+byte(i*7) {
			return false
		}
	}
	return true
}

func (h heap) stress(random *rand.Rand) error {
	for round := range rounds {
		at := random.Intn(objects)
		for o := h[at]; o != nil; o = o.next {
			if !o.whole() {
				return fmt.Errorf("object %d has changed in round %d", at, round)
			}
		}
		if random.Intn(3) == 0 {
			h[at] = &object{seed: 1, next: h[random.Intn(objects)].tip()}
		} else {
			h[at] = make1(random)
		}
	}
	for at, o := range h {
		if !o.whole() {
			return fmt.Errorf("object %d has changed in the end", at)
		}
	}
	return nil
}

// tip is the object without those behind it.
func (o *object) tip() *object { return &object{seed: o.seed, bytes: o.bytes} }

func main() {
	debug.SetGCPercent(30)
	heaps := make([]heap, goroutines)
	for n := range heaps {
		random := rand.New(rand.NewSource(int64(n)))
		heaps[n] = heap{}
		for at := range objects {
			heaps[n][at] = make1(random)
		}
	}
	http.HandleFunc("/", func(answer http.ResponseWriter, _ *http.Request) {
		errors := make([]error, goroutines)
		var all sync.WaitGroup
		for n, h := range heaps {
			all.Add(1)
			go func() {
				defer all.Done()
				errors[n] = h.stress(rand.New(rand.NewSource(int64(100 + n))))
			}()
		}
		all.Wait()
		runtime.GC()
		debug.FreeOSMemory()
		for n, h := range heaps {
			if errors[n] == nil {
				errors[n] = h.stress(rand.New(rand.NewSource(int64(200 + n))))
			}
			if errors[n] != nil {
				http.Error(answer, errors[n].Error(), http.StatusInternalServerError)
				return
			}
		}
		fmt.Fprintln(answer, "allocator: ok")
	})
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Getenv("PORT"), nil))
}
