package registry

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/distribution/reference"

	"github.com/berthrun/berth/internal/errs"
)

// TestUnserved: which answers of a registry have another one tried for a name without a registry.
func TestUnserved(t *testing.T) {
	for name, c := range map[string]struct {
		status   int
		header   http.Header
		unserved bool
		kind     error
	}{
		"not found":         {status: http.StatusNotFound, unserved: true, kind: errs.NotFound},
		"forbidden":         {status: http.StatusForbidden, unserved: true, kind: errs.Denied},
		"unauthorized":      {status: http.StatusUnauthorized, unserved: true, kind: errs.Denied},
		"basic credentials": {status: http.StatusUnauthorized, header: http.Header{"Www-Authenticate": {`Basic realm="x"`}}, unserved: true, kind: errs.Denied},
		"broken":            {status: http.StatusInternalServerError, unserved: true, kind: errs.Unavailable},
		"bad request":       {status: http.StatusBadRequest, kind: errs.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				for key, values := range c.header {
					w.Header()[key] = values
				}
				w.WriteHeader(c.status)
			}))
			defer server.Close()
			wantUnserved(t, strings.TrimPrefix(server.URL, "http://"), c.unserved, c.kind)
		})
	}
	t.Run("away", func(t *testing.T) {
		server := httptest.NewServer(http.NotFoundHandler())
		host := strings.TrimPrefix(server.URL, "http://")
		server.Close()
		wantUnserved(t, host, true, errs.Unavailable)
	})
}

func wantUnserved(t *testing.T, host string, want bool, kind error) {
	t.Helper()
	named, err := reference.ParseDockerRef(host + "/app:1")
	if err != nil {
		t.Fatal(err)
	}
	r, err := Open(t.Context(), named, Auth{}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	_, err = r.Resolve(t.Context())
	var unserved *UnservedError
	if errors.As(err, &unserved) != want || !errors.Is(err, kind) {
		t.Errorf("error %v, want one that another registry may mend: %v, of kind %v", err, want, kind)
	}
}
