package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// serve answers every request with a greeting, and /healthz with 200 once it is up.
// It ends on SIGTERM with code 0, after the requests under way.
func serve(args []string) int {
	flags := flag.NewFlagSet("serve", flag.ContinueOnError)
	address := flags.String("listen", ":8080", "address to listen on")
	greeting := flags.String("greeting", "hello from berth", "what to answer")
	if flags.Parse(args[1:]) != nil {
		return 2
	}
	host, _ := os.Hostname()
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fmt.Printf("%s %s from %s\n", r.Method, r.URL.Path, r.RemoteAddr)
		fmt.Fprintf(w, "%s, pod %s\n", *greeting, host)
	})
	server := &http.Server{Addr: *address, Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- server.ListenAndServe() }()
	fmt.Printf("serving on %s\n", *address)
	select {
	case err := <-ended:
		return fail(args, err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := server.Shutdown(grace); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return fail(args, err)
	}
	fmt.Println("stopped")
	return 0
}

// get fetches one URL and prints the body; an answer of 400 or more is a failure.
func get(args []string) int {
	if len(args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: get URL")
		return 2
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, args[1], nil)
	if err != nil {
		return fail(args, err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fail(args, err)
	}
	defer response.Body.Close()
	if _, err := io.Copy(os.Stdout, response.Body); err != nil {
		return fail(args, err)
	}
	if response.StatusCode >= http.StatusBadRequest {
		return fail(args, errors.New(response.Status))
	}
	return 0
}
