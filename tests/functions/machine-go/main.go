// Answers with the size of the machine that it takes this to be, when it began and now.
package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// What the runtime keeps open of control groups, and how many threads it runs.
func size() map[string]any {
	held := []string{}
	links, _ := filepath.Glob("/proc/self/fd/*")
	for _, link := range links {
		if target, _ := os.Readlink(link); strings.HasPrefix(target, "/sys") {
			held = append(held, target)
		}
	}
	return map[string]any{"threads": runtime.GOMAXPROCS(0), "held": held}
}

func main() {
	// What Go finds by itself.
	began := size()
	http.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		json.NewEncoder(w).Encode(map[string]any{"began": began, "now": size()})
	})
	http.ListenAndServe("127.0.0.1:"+os.Getenv("PORT"), nil)
}
