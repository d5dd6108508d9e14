package innode

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// TestForgetMember: a member is removed by its name, or by its address if it has no name yet. The
// removal is retried until etcd has settled.
func TestForgetMember(t *testing.T) {
	const members = `{"members":[{"ID":"11284230014533542033","name":"dev-control-plane","peerURLs":["https://10.89.0.128:2380"]},
{"ID":"2","name":"dev-control-plane2","peerURLs":["https://10.89.0.129:2380"]},{"ID":"3","peerURLs":["https://[fd00::83]:2380"]}]}`
	var asked []string
	refuse := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		if strings.HasSuffix(r.URL.Path, "/list") {
			fmt.Fprint(w, members)
			return
		}
		if refuse--; refuse >= 0 {
			http.Error(w, "etcdserver: unhealthy cluster", http.StatusServiceUnavailable)
			return
		}
		asked = append(asked, r.URL.Path+string(body))
	}))
	defer server.Close()
	e := &etcd{server.URL, server.Client(), time.Millisecond}
	for _, c := range []struct {
		name      string
		addresses []string
		refuse    int
		want      []string
	}{
		{"dev-control-plane2", nil, 2, []string{`/v3/cluster/member/remove{"ID":"2"}`}},
		{"dev-control-plane3", []string{"10.89.0.130", "fd00::83"}, 0, []string{`/v3/cluster/member/remove{"ID":"3"}`}},
		{"dev-control-plane4", []string{"10.89.0.128"}, 0, nil},
	} {
		asked, refuse = nil, c.refuse
		if err := e.removeMember(t.Context(), c.name, c.addresses); err != nil || !slices.Equal(asked, c.want) {
			t.Errorf("%s: %q, %v; want %q", c.name, asked, err, c.want)
		}
	}
	refuse = 1
	if err := e.remove(t.Context(), "dev-control-plane", nil); !errors.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), "unhealthy cluster") {
		t.Errorf("a refusal: %v", err)
	}
}
