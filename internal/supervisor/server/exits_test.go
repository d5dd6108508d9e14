package server

import (
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/supervisor"
)

func TestExitListenerGetsEachExitOnce(t *testing.T) {
	var e exitListeners
	var got []string
	stop := e.listen(func(exit supervisor.Exit) { got = append(got, exit.ID) })
	e.publish(supervisor.Exit{ID: "a"})
	e.publish(supervisor.Exit{ID: "b"})
	stop()
	e.publish(supervisor.Exit{ID: "c"})
	if strings.Join(got, "") != "ab" {
		t.Errorf("heard %v", got)
	}
}
