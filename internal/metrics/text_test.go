package metrics

import (
	"net/http"
	"sync"
	"testing"
)

// TestTextBesideSlowClients: clients that do not read their answers do not keep the metrics from berth's own socket.
func TestTextBesideSlowClients(t *testing.T) {
	m := New("1", "2")
	busy, release := make(chan struct{}), make(chan struct{})
	var answers sync.WaitGroup
	for range scrapesAtOnce {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		answers.Go(func() { m.Handler().ServeHTTP(&unread{busy: busy, release: release}, req) })
	}
	for range scrapesAtOnce {
		<-busy
	}
	if _, err := m.Text(t.Context()); err != nil {
		t.Error(err)
	}
	close(release)
	answers.Wait()
}

// unread is an answer that its client does not read before it is released.
type unread struct {
	answer
	busy, release chan struct{}
	once          sync.Once
}

func (u *unread) Write(p []byte) (int, error) {
	u.once.Do(func() {
		u.busy <- struct{}{}
		<-u.release
	})
	return len(p), nil
}
