package dockerstore

import (
	"errors"
	"net/http"
	"testing"

	"github.com/berthrun/berth/internal/docker/api"
	"github.com/berthrun/berth/internal/docker/fakeengine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
)

// TestPullWithoutARegistryOrAnEngine: the error of a pull says which of them does not answer.
func TestPullWithoutARegistryOrAnEngine(t *testing.T) {
	answers := func(at string, answer http.HandlerFunc) string {
		return fakeengine.Start(t, fakeengine.Script{Answers: map[string]http.HandlerFunc{at: answer}}).Endpoint
	}
	const create = "POST /images/create"
	for name, test := range map[string]struct {
		endpoint string
		away     bool
	}{
		"no engine":                     {"unix://" + fakeengine.Socket(t), true},
		"the engine closes":             {answers(create, fakeengine.CutOff("")), true},
		"the registry is unavailable":   {answers(create, fakeengine.Fail(http.StatusServiceUnavailable, "later")), false},
		"the registry refuses to speak": {answers(create, fakeengine.Fail(http.StatusInternalServerError, "dial tcp 127.0.0.1:443: connect: connection refused")), false},
		"the registry has a fault":      {answers(create, fakeengine.Text(`{"errorDetail":{"message":"received unexpected HTTP status: 503 Service Unavailable"}}`)), false},
	} {
		t.Run(name, func(t *testing.T) {
			client, err := api.New(api.Options{Endpoint: test.endpoint})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			store, err := New(Options{Client: client, Dir: t.TempDir()})
			if err != nil {
				t.Fatal(err)
			}
			defer store.Close()
			_, err = store.Pull(t.Context(), "registry.test/app:1", image.Auth{}, nil)
			var away *image.AwayError
			if !errors.Is(err, errs.Unavailable) || errors.As(err, &away) != test.away {
				t.Errorf("the engine is away: %v, want %v; error %v", !test.away, test.away, err)
			}
		})
	}
}
