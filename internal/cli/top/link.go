package top

import (
	"fmt"
	"time"

	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/cli/top/screen"
)

// link is how the runtime answers.
//
//	answers → lost (the connection ended) → returned (it is there again) → answers
//	answers → silent (a reading takes long), failing (a reading failed) → answers
type link struct {
	// asked is when the reading under way began, zero for none.
	asked time.Time
	// answered is when the last reading ended well.
	answered time.Time
	// lost is when the connection ended, zero while there is one.
	lost time.Time
	// returned and away are when the connection was there again, and how long it was not.
	returned time.Time
	away     time.Duration
	// failure is why the last reading failed, "" if it did not.
	failure string
}

const (
	// patience is how long a reading may take before the screen says so.
	patience = 2 * time.Second
	// returnedTime is how long the screen says that the runtime has returned.
	returnedTime = 5 * time.Second
)

// connection is called when there is a connection, and when it has ended. It returns true when one that was lost is back.
func (l *link) connection(now time.Time, connected bool) (back bool) {
	if !connected {
		l.lost = now
		return false
	}
	if l.lost.IsZero() {
		return false
	}
	l.returned, l.away, l.lost = now, now.Sub(l.lost), time.Time{}
	return true
}

func (l *link) ask(now time.Time) { l.asked = now }

// answer is called at the end of a reading.
func (l *link) answer(now time.Time, failure string) {
	l.asked, l.failure = time.Time{}, failure
	if failure == "" {
		l.answered = now
	}
}

// status is what the screen says of the runtime, "" while all is well.
func (l *link) status(now time.Time) (text string, st screen.Style) {
	switch {
	case !l.lost.IsZero():
		return fmt.Sprintf("the runtime closed the connection %s ago; connecting again; pods keep running", show.Age(now.Sub(l.lost))), screen.Bad
	case !l.asked.IsZero() && now.Sub(l.asked) > patience:
		return fmt.Sprintf("the runtime has not answered for %s; the figures are old", show.Age(now.Sub(l.asked))), screen.Bad
	case l.failure != "":
		return "cannot read the figures: " + l.failure, screen.Bad
	case !l.returned.IsZero() && now.Sub(l.returned) < returnedTime:
		return fmt.Sprintf("connected again after %s", show.Age(l.away)), screen.Warn
	}
	return "", screen.Plain
}
