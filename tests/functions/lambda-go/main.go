// A function of AWS's Go library, unmodified.
package main

import (
	"context"
	"errors"
	"os"

	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-lambda-go/lambdacontext"
)

func handle(ctx context.Context, event map[string]any) (map[string]any, error) {
	if why, ok := event["raise"].(string); ok {
		return nil, errors.New(why)
	}
	if _, ok := event["panic"]; ok {
		panic("no way on")
	}
	if code, ok := event["exit"].(float64); ok {
		os.Exit(int(code))
	}
	known, _ := lambdacontext.FromContext(ctx)
	_, limited := ctx.Deadline()
	return map[string]any{"event": event, "request": known.AwsRequestID, "limited": limited}, nil
}

func main() {
	lambda.Start(handle)
}
