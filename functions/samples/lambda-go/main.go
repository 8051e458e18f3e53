// A handler behind AWS's own Go library, unmodified: bootstrap would run on AWS Lambda, too. It greets, fails, ends, and
// streams, as its event says.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-lambda-go/lambdacontext"
)

func handle(ctx context.Context, event map[string]any) (any, error) {
	if why, ok := event["raise"].(string); ok {
		return nil, errors.New(why)
	}
	if why, ok := event["panic"].(string); ok {
		panic(why)
	}
	if code, ok := event["exit"].(float64); ok {
		os.Exit(int(code))
	}
	if query, ok := event["queryStringParameters"].(map[string]any); ok {
		event = query
	}
	if pieces, ok := event["stream"]; ok {
		why, _ := event["end"].(string)
		return stream(fmt.Sprint(pieces), why), nil
	}
	name, ok := event["name"].(string)
	if !ok {
		name = "world"
	}
	known, _ := lambdacontext.FromContext(ctx)
	_, inTime := ctx.Deadline()
	return map[string]any{"greeting": "Hello, " + name + "!", "request": known.AwsRequestID, "in_time": inTime}, nil
}

// stream answers with lines, one after the other, and then with an error, if there is a reason for one.
func stream(pieces, why string) *events.LambdaFunctionURLStreamingResponse {
	body, to := io.Pipe()
	go func() {
		count := 0
		fmt.Sscan(pieces, &count)
		for piece := range count {
			fmt.Fprintln(to, piece)
		}
		if why != "" {
			to.CloseWithError(errors.New(why))
		}
		to.Close()
	}()
	headers := map[string]string{"content-type": "text/plain", "x-pieces": pieces}
	return &events.LambdaFunctionURLStreamingResponse{StatusCode: 201, Headers: headers, Body: body}
}

func main() {
	lambda.Start(handle)
}
