package logs

import (
	"testing"
	"time"

	"github.com/berthrun/berth/internal/crilog"
)

// TestMessagesAfterTheEnd: a driver that hands messages to another program stores some of them
// after the engine has reported the end.
func TestMessagesAfterTheEnd(t *testing.T) {
	b := newBench(t)
	b.engine.driver = "journald"
	b.engine.late = []message{{at: at(3), raw: []byte("three\n")}, {at: at(4), raw: []byte("four\n")}, {at: at(4), raw: []byte("five\n")}}
	b.engine.print(crilog.Stdout, at(1), "one\n")
	b.start()
	b.waitFor(1)
	b.engine.print(crilog.Stdout, at(2), "two\n")
	b.drain()
	b.expect("stdout F one", "stdout F two", "stdout F three", "stdout F four", "stdout F five")
	if last := b.engine.begun[len(b.engine.begun)-1]; last != (&progress{Last: at(4)}).since(time.Now(), 0) {
		t.Errorf("the last look began at %s: it reads more than what is new", last)
	}
}

// TestNoLooksAfterTheEndOfAFile: drivers with files of the engine's own have stored all.
func TestNoLooksAfterTheEndOfAFile(t *testing.T) {
	for _, driver := range []string{"json-file", "local"} {
		b := newBench(t)
		b.engine.driver = driver
		b.engine.print(crilog.Stdout, at(1), "one\n")
		b.start()
		b.drain()
		b.expect("stdout F one")
		if looks := len(b.engine.begun); looks > 1 {
			t.Errorf("%s: %d streams after the end", driver, looks)
		}
	}
}
