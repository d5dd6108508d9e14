package dockerstore

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/docker/api"
	"github.com/berthrun/berth/internal/docker/fakeengine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
)

// TestAPullWithoutProgress: an engine that repeats itself, or says nothing, does not hold a pull
// up for longer than the rules say. The error has the image and the last step.
func TestAPullWithoutProgress(t *testing.T) {
	const step = `{"status":"Downloading","id":"5f70bf18a086","progressDetail":{"current":10,"total":20}}` + "\n"
	const unheard = "ask the registry" // the step before the engine's first message
	for name, test := range map[string]struct {
		answer http.HandlerFunc
		kind   error
		words  []string
	}{
		"no answer": {fakeengine.Silent, errs.Deadline, []string{unheard}},
		"silence":   {fakeengine.Hang(step), errs.Deadline, []string{"Downloading of 5f70bf18a086, 10 of 20"}},
		"repetition": {func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				if _, err := w.Write([]byte(step)); err != nil {
					return
				}
				_ = http.NewResponseController(w).Flush()
				time.Sleep(10 * time.Millisecond)
			}
		}, errs.Deadline, []string{"Downloading of 5f70bf18a086, 10 of 20"}},
		"cut off": {fakeengine.CutOff(step), errs.Unavailable, []string{"closed the connection"}},
		"an end":  {fakeengine.Text(step), errs.Unavailable, []string{"5f70bf18a086"}},
		"garbage": {fakeengine.Text("<html>"), nil, []string{"JSON"}},
		"full":    {fakeengine.Fail(http.StatusInternalServerError, "write /x: no space left on device"), errs.Exhausted, nil},
	} {
		t.Run(name, func(t *testing.T) {
			e := fakeengine.Start(t, fakeengine.Script{Answers: map[string]http.HandlerFunc{"POST /images/create": test.answer}})
			client, err := api.New(api.Options{Endpoint: e.Endpoint})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			pull := func(limit time.Duration) error {
				store, err := New(Options{Client: client, Dir: t.TempDir(), PullRules: PullRules{NoProgressTimeout: limit}})
				if err != nil {
					t.Fatal(err)
				}
				defer store.Close()
				_, err = store.Pull(t.Context(), "registry.test/app:1", image.Auth{}, nil)
				return err
			}
			limit := 200 * time.Millisecond
			err = pull(limit)
			// A limit that has ended before the engine's first message was too short for this machine.
			for !slices.Contains(test.words, unheard) && err != nil && strings.Contains(err.Error(), unheard) && limit < 10*time.Second {
				limit *= 2
				err = pull(limit)
			}
			if err == nil || !errors.Is(errs.Kind(err), test.kind) {
				t.Fatalf("error %v, want kind %v", err, test.kind)
			}
			if errors.Is(test.kind, errs.Unavailable) && !isAway(err) {
				t.Errorf("%v is of a registry", err)
			}
			if want := "no progress for " + limit.String(); errors.Is(test.kind, errs.Deadline) && !strings.Contains(err.Error(), want) {
				t.Errorf("%q does not have %q", err, want)
			}
			for _, word := range append(test.words, "registry.test/app:1") {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("%q does not have %q", err, word)
				}
			}
		})
	}
}
