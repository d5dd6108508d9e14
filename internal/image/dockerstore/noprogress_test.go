package dockerstore

import (
	"errors"
	"net/http"
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
	for name, test := range map[string]struct {
		answer http.HandlerFunc
		kind   error
		words  []string
	}{
		"no answer": {fakeengine.Silent, errs.Deadline, []string{"no progress for 200ms", "ask the registry"}},
		"silence":   {fakeengine.Hang(step), errs.Deadline, []string{"no progress for 200ms", "Downloading of 5f70bf18a086, 10 of 20"}},
		"repetition": {func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				if _, err := w.Write([]byte(step)); err != nil {
					return
				}
				_ = http.NewResponseController(w).Flush()
				time.Sleep(10 * time.Millisecond)
			}
		}, errs.Deadline, []string{"no progress for 200ms", "Downloading of 5f70bf18a086, 10 of 20"}},
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
			store, err := New(Options{
				Client: client, Dir: t.TempDir(), PullRules: PullRules{NoProgressTimeout: 200 * time.Millisecond},
			})
			if err != nil {
				t.Fatal(err)
			}
			defer store.Close()
			_, err = store.Pull(t.Context(), "registry.test/app:1", image.Auth{}, nil)
			if err == nil || !errors.Is(errs.Kind(err), test.kind) {
				t.Fatalf("error %v, want kind %v", err, test.kind)
			}
			for _, word := range append(test.words, "registry.test/app:1") {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("%q does not have %q", err, word)
				}
			}
		})
	}
}
