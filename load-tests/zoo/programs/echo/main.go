// Items in memory, by Echo.
package main

import (
	"net/http"
	"os"
	"sync"

	"github.com/labstack/echo/v4"
)

func main() {
	var lock sync.Mutex
	items := []string{}
	server := echo.New()
	server.GET("/", func(c echo.Context) error { return c.String(http.StatusOK, "hello of Echo") })
	server.GET("/items", func(c echo.Context) error {
		lock.Lock()
		defer lock.Unlock()
		return c.JSON(http.StatusOK, items)
	})
	server.POST("/items/:name", func(c echo.Context) error {
		lock.Lock()
		defer lock.Unlock()
		items = append(items, c.Param("name"))
		return c.JSON(http.StatusOK, items)
	})
	server.Logger.Fatal(server.Start("127.0.0.1:" + os.Getenv("PORT")))
}
