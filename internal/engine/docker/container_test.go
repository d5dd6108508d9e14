package docker

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/docker/api"
)

// TestStartAfterAnOutage: an engine that was killed during a start refuses the next one, which
// makes it remove what is left. Other failed starts are not repeated.
func TestStartAfterAnOutage(t *testing.T) {
	for name, c := range map[string]struct {
		answers []int
		away    time.Time
		starts  int
		works   bool
	}{
		"it works":                        {[]int{204}, time.Now(), 1, true},
		"a conflict":                      {[]int{409, 204}, time.Time{}, 2, true},
		"a failure after an outage":       {[]int{500, 204}, time.Now(), 2, true},
		"two failures after an outage":    {[]int{500, 500, 204}, time.Now(), 2, false},
		"a failure long after an outage":  {[]int{500, 204}, time.Now().Add(-time.Hour), 1, false},
		"a program that is not there":     {[]int{400, 204}, time.Now(), 1, false},
		"a container that does not exist": {[]int{404, 204}, time.Now(), 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			starts := 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Api-Version", "1.41")
				if strings.HasSuffix(r.URL.Path, "/start") {
					w.WriteHeader(c.answers[starts])
					if starts++; c.answers[starts-1] != http.StatusNoContent {
						fmt.Fprint(w, `{"message": "task x: already exists"}`)
					}
				}
			}))
			defer server.Close()
			client, err := api.New(api.Options{Endpoint: "tcp://" + strings.TrimPrefix(server.URL, "http://")})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			e := &Engine{client: client, log: slog.New(slog.DiscardHandler)}
			e.awayAt.Store(c.away.UnixNano())
			if err := e.start(t.Context(), "x"); (err == nil) != c.works || starts != c.starts {
				t.Errorf("%d starts, %v", starts, err)
			}
		})
	}
}
