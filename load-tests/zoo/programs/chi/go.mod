module zoo/chi

go 1.24

require github.com/go-chi/chi/v5 v5.2.3

require go.etcd.io/bbolt v1.4.3

require golang.org/x/sys v0.29.0 // indirect
