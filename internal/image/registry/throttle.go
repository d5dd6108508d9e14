package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// ThrottledError is the answer of a server that limits requests (429), or that is busy and says
// for how long (503 with Retry-After). Its kind is Unavailable.
type ThrottledError struct {
	// Host is the server, with its port.
	Host string
	// Status is the code of the answer.
	Status int
	// After is how long the server asks to wait, 0 if it does not say.
	After time.Duration
}

func (e *ThrottledError) Error() string {
	what := "is busy"
	if e.Status == http.StatusTooManyRequests {
		what = "limits requests"
	}
	wait := "does not say how long to wait"
	if e.After > 0 {
		wait = "asks to wait " + e.After.String()
	}
	return fmt.Sprintf("registry %s %s (%d %s) and %s", e.Host, what, e.Status, http.StatusText(e.Status), wait)
}

// Unwrap returns the kind.
func (e *ThrottledError) Unwrap() error { return errs.Unavailable }

// throttled returns the error of an answer, nil if it is another answer. It closes the body then.
func throttled(resp *http.Response) error {
	after, says := retryAfter(resp.Header.Get("Retry-After"), time.Now())
	if resp.StatusCode != http.StatusTooManyRequests && (resp.StatusCode != http.StatusServiceUnavailable || !says) {
		return nil
	}
	resp.Body.Close()
	return &ThrottledError{Host: resp.Request.URL.Host, Status: resp.StatusCode, After: after}
}

// retryAfter reads the header: seconds, or a time.
func retryAfter(value string, now time.Time) (after time.Duration, ok bool) {
	if seconds, err := strconv.ParseInt(value, 10, 32); err == nil && seconds >= 0 {
		return time.Duration(seconds) * time.Second, true
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(at.Sub(now).Round(time.Second), 0), true
	}
	return 0, false
}

const (
	// maxWait is the longest wait that a pull honours. With a longer one it fails, and its caller
	// decides when to try again.
	maxWait = 30 * time.Second
	// maxRounds is how many times all endpoints are asked if one of them asks to wait.
	maxRounds = 3
	// defaultWait is that of a server which names none, for the first round.
	defaultWait = time.Second
)

// await waits until an endpoint that throttles may be asked again. It returns false if none of them
// does, or if the wait is too long.
func await(ctx context.Context, faults []fault, round int) bool {
	wait := time.Duration(-1)
	for _, f := range faults {
		var throttled *ThrottledError
		if !errors.As(f.err, &throttled) {
			continue
		}
		after := throttled.After
		if after == 0 && throttled.Status == http.StatusTooManyRequests {
			after = defaultWait << round
		}
		if wait < 0 || after < wait {
			wait = after
		}
	}
	if wait < 0 || wait > maxWait || round+1 >= maxRounds {
		return false
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
