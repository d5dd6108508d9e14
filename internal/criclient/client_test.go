package criclient

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berthrun/berth/internal/errs"
)

func TestWithoutADaemonTheErrorSaysWhatToDo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "berth.sock")
	for _, what := range []string{"there is no such socket", "nobody listens"} {
		if what == "nobody listens" {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
			if err != nil {
				t.Fatal(err)
			}
			l.SetUnlinkOnClose(false)
			l.Close()
		}
		_, err := Dial(t.Context(), "unix://"+path)
		if !errors.Is(err, errs.Unavailable) {
			t.Fatalf("got %v", err)
		}
		for _, want := range []string{"unix://" + path, what, "berth serve", "--endpoint"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q lacks %q", err, want)
			}
		}
	}
}

func TestEndpointsAreUnixSockets(t *testing.T) {
	for _, endpoint := range []string{"", "tcp://127.0.0.1:1", "berth.sock", "unix://berth.sock"} {
		if _, err := Dial(t.Context(), endpoint); !errors.Is(err, errs.Invalid) {
			t.Errorf("%q: got %v", endpoint, err)
		}
	}
}

func TestErrorsBecomeKindsWithTheirMessageAlone(t *testing.T) {
	for code, kind := range map[codes.Code]error{
		codes.NotFound: errs.NotFound, codes.AlreadyExists: errs.Exists, codes.InvalidArgument: errs.Invalid,
		codes.FailedPrecondition: errs.State, codes.Unavailable: errs.Unavailable, codes.Unimplemented: errs.Unsupported,
		codes.ResourceExhausted: errs.Exhausted, codes.DeadlineExceeded: errs.Deadline, codes.Canceled: context.Canceled, codes.PermissionDenied: errs.Denied,
	} {
		err := plain(status.Error(code, "cannot do it"))
		if !errors.Is(err, kind) || err.Error() != "cannot do it" {
			t.Errorf("%s became %v", code, err)
		}
	}
	if err := plain(status.Error(codes.Internal, "a fault")); err.Error() != "a fault" || errs.Kind(err) != nil {
		t.Errorf("got %v", err)
	}
}
