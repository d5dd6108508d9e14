package streaming

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// ticketLife is how long a client has to use its URL; maxTickets bounds what
// clients that never come can pile up.
const (
	ticketLife = time.Minute
	maxTickets = 1000
)

// tickets are the sessions that were promised and not yet begun. The zero value
// is ready.
type tickets struct {
	mu      sync.Mutex
	waiting map[string]ticket
}

type ticket struct {
	verb    string
	session http.HandlerFunc
	expires time.Time
}

// issue keeps session under a new token. Kind Exhausted when too many wait.
func (t *tickets) issue(verb string, session http.HandlerFunc, now time.Time) (token string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire(now) // each holds a request, which may be large
	if len(t.waiting) >= maxTickets {
		return "", fmt.Errorf("cannot promise another %s session: %d wait for their clients: %w", verb, maxTickets, errs.Exhausted)
	}
	if t.waiting == nil {
		t.waiting = map[string]ticket{}
	}
	token = rand.Text()
	t.waiting[token] = ticket{verb, session, now.Add(ticketLife)}
	return token, nil
}

// take returns the session of a token and forgets it.
func (t *tickets) take(verb, token string, now time.Time) (http.HandlerFunc, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	found, ok := t.waiting[token]
	if !ok || found.verb != verb {
		return nil, false
	}
	delete(t.waiting, token)
	return found.session, now.Before(found.expires)
}

func (t *tickets) expire(now time.Time) {
	for token, waiting := range t.waiting {
		if !now.Before(waiting.expires) {
			delete(t.waiting, token)
		}
	}
}
