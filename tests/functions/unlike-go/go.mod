module unlike

go 1.24
