// NATS as its own main package starts it, without the latter's signal handling.
package main

import (
	"flag"
	"log"
	"os"

	"github.com/nats-io/nats-server/v2/server"
)

func main() {
	flags := flag.NewFlagSet("nats-server", flag.ExitOnError)
	options, err := server.ConfigureOptions(flags, os.Args[1:], nil, nil, nil)
	if err != nil {
		log.Fatal(err)
	}
	running, err := server.NewServer(options)
	if err != nil {
		log.Fatal(err)
	}
	running.ConfigureLogger()
	if err := server.Run(running); err != nil {
		log.Fatal(err)
	}
	running.WaitForShutdown()
}
