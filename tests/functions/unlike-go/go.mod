module unlike

go 1.24

require (
	github.com/google/uuid v1.6.0
	github.com/oklog/ulid/v2 v2.1.2
)
