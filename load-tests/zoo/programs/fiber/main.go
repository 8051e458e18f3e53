// Items in memory, by Fiber.
package main

import (
	"log"
	"os"
	"strings"
	"sync"

	"github.com/gofiber/fiber/v2"
)

func main() {
	var lock sync.Mutex
	items := []string{}
	app := fiber.New()
	app.Get("/", func(c *fiber.Ctx) error { return c.SendString("hello of Fiber") })
	app.Get("/items", func(c *fiber.Ctx) error {
		lock.Lock()
		defer lock.Unlock()
		return c.JSON(items)
	})
	app.Post("/items/:name", func(c *fiber.Ctx) error {
		lock.Lock()
		defer lock.Unlock()
		items = append(items, strings.Clone(c.Params("name")))
		return c.JSON(items)
	})
	log.Fatal(app.Listen("127.0.0.1:" + os.Getenv("PORT")))
}
