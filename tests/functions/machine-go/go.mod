module machine

go 1.25
