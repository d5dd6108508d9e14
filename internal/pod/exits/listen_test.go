package exits

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
)

// awaySource is an engine that goes away for a number of attempts.
type awaySource struct {
	away  int
	lost  chan engine.Exit
	calls int
}

func (s *awaySource) Exits(context.Context) (<-chan engine.Exit, error) {
	if s.calls++; s.calls > 1 && s.calls <= 1+s.away {
		return nil, errs.Unavailable
	}
	s.lost = make(chan engine.Exit)
	return s.lost, nil
}

// TestAnEngineThatIsAwayIsLoggedOnce: however long it is away, the log says once that it is, and once
// that it is back.
func TestAnEngineThatIsAwayIsLoggedOnce(t *testing.T) {
	for _, away := range []int{0, 1, 20} {
		synctest.Test(t, func(t *testing.T) {
			var out bytes.Buffer
			ctx, cancel := context.WithCancel(t.Context())
			var group sync.WaitGroup
			source := &awaySource{away: away}
			rechecks := 0
			recorder := &Recorder{log: slog.New(slog.NewTextHandler(&out, nil))}
			if err := Listen(ctx, source, recorder, func(context.Context) { rechecks++ }, &group); err != nil {
				t.Fatal(err)
			}
			close(source.lost)
			time.Sleep(time.Minute)
			synctest.Wait()
			cancel()
			group.Wait()
			want := min(away, 1)
			if got := strings.Count(out.String(), "cannot listen to the engine's exits"); got != want {
				t.Errorf("%d failed attempts: %d lines\n%s", away, got, out.String())
			}
			if got := strings.Count(out.String(), "listening to the engine's exits again"); got != want || rechecks != 1 {
				t.Errorf("%d failed attempts: %d lines that it is back, %d looks at what was lost\n%s", away, got, rechecks, out.String())
			}
		})
	}
}
