module rekindle.test/heap

go 1.22
