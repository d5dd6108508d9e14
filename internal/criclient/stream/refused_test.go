package stream

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
)

// TestRefusedConnection: a client in another network namespace than the runtime's does not reach its
// loopback address. The error says what to do.
func TestRefusedConnection(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + l.Addr().String() + "/exec/token"
	l.Close()
	_, runErr := Run(t.Context(), url, Streams{Out: io.Discard})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for name, err := range map[string]error{
		"run": runErr, "forward": Forward(ctx, url, []string{"127.0.0.1"}, []string{":80"}, io.Discard, io.Discard),
	} {
		if !errors.Is(err, errs.Unavailable) {
			t.Errorf("%s: got %v", name, err)
			continue
		}
		for _, want := range []string{l.Addr().String(), "network namespace", "stream.address"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q lacks %q", name, err, want)
			}
		}
	}
}
