package streaming

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// ticketLife is how long a URL is valid; maxTickets bounds the URLs that no client has used yet.
const (
	ticketLife = time.Minute
	maxTickets = 1000
)

// tickets are the sessions that have a URL and no client yet. The zero value is ready for use.
type tickets struct {
	mu      sync.Mutex
	waiting map[string]ticket
}

type ticket struct {
	verb    string
	session http.HandlerFunc
	expires time.Time
}

// issue stores session under a new token. The error is of kind Exhausted if maxTickets are stored.
func (t *tickets) issue(verb string, session http.HandlerFunc, now time.Time) (token string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire(now) // each holds a request, which may be large
	if len(t.waiting) >= maxTickets {
		return "", fmt.Errorf("cannot issue a URL for another %s session: %d sessions wait for their clients: %w", verb, maxTickets, errs.Exhausted)
	}
	if t.waiting == nil {
		t.waiting = map[string]ticket{}
	}
	token = rand.Text()
	t.waiting[token] = ticket{verb, session, now.Add(ticketLife)}
	return token, nil
}

// take returns the session of a token and removes it.
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
