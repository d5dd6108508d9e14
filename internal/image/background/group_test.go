package background

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// TestNothingBeginsAfterClose: what the work uses is closed then.
func TestNothingBeginsAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGroup()
		g.Close()
		g.Go(func(context.Context) { t.Error("work began") })
		g.GoUntilTimeout(func(context.Context) { t.Error("work with a timeout began") })
		if _, _, err := g.Begin(t.Context()); !errors.Is(err, errs.Unavailable) {
			t.Errorf("Begin: %v", err)
		}
		synctest.Wait()
		g.Close()
	})
}

// TestCloseWaitsForWorkOfWork: work that Close waits for may begin more, which Close waits for, too.
func TestCloseWaitsForWorkOfWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGroup()
		ctx, end, err := g.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ended := 0
		go func() {
			<-ctx.Done() // Close has begun
			g.GoUntilTimeout(func(ctx context.Context) {
				<-ctx.Done()
				ended++
			})
			end()
		}()
		begin := time.Now()
		g.Close()
		if took := time.Since(begin); ended != 1 || took != CloseTimeout {
			t.Errorf("Close returned after %s, %d ended", took, ended)
		}
	})
}
