// Items in memory, by Gin.
package main

import (
	"net/http"
	"os"
	"sync"

	"github.com/gin-gonic/gin"
)

func main() {
	var lock sync.Mutex
	items := []string{}
	router := gin.Default()
	router.GET("/", func(c *gin.Context) { c.String(http.StatusOK, "hello of Gin") })
	router.GET("/items", func(c *gin.Context) {
		lock.Lock()
		defer lock.Unlock()
		c.JSON(http.StatusOK, items)
	})
	router.POST("/items/:name", func(c *gin.Context) {
		lock.Lock()
		defer lock.Unlock()
		items = append(items, c.Param("name"))
		c.JSON(http.StatusOK, items)
	})
	router.Run("127.0.0.1:" + os.Getenv("PORT"))
}
