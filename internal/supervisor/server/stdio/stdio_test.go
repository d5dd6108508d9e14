package stdio

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/sys/sysfd"
)

// openTerminal returns the two sides of a pty.
func openTerminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if master, err = sysfd.NewTerminal(fd); err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	return master, slave
}

// TestTerminalOfAStalledLog: the log takes nothing when a container ends, its pipe is full, and the terminal has output.
func TestTerminalOfAStalledLog(t *testing.T) {
	for name, tc := range map[string]struct {
		patience, stalled time.Duration
		goesOn            bool
	}{
		"for a while":                {time.Minute, terminalTimeout + 200*time.Millisecond, false},
		"longer than the exit waits": {patience: 100 * time.Millisecond, goesOn: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st := &Streams{}
			defer st.Close()
			var err error
			if st.stdout, st.toLog, err = sysfd.InputPipe(sysfd.Owner{}); err != nil {
				t.Fatal(err)
			}
			size, err := unix.FcntlInt(st.toLog.Fd(), unix.F_GETPIPE_SZ, 0)
			if err != nil {
				t.Fatal(err)
			}
			want := bytes.Repeat([]byte("early"), size/5+1)[:size]
			if _, err := st.toLog.Write(want); err != nil {
				t.Fatal(err)
			}
			master, slave := openTerminal(t)
			st.terminal = master
			last := bytes.Repeat([]byte("late"), 200)
			if _, err := slave.Write(last); err != nil {
				t.Fatal(err)
			}
			slave.Close()
			ended := make(chan struct{})
			close(ended)
			st.CopyTerminal(ended)
			ctx, stop := context.WithTimeout(t.Context(), tc.patience)
			defer stop()
			var healthy atomic.Bool
			got := make(chan []byte, 1)
			recovers := func() {
				healthy.Store(true)
				all, err := io.ReadAll(st.stdout)
				if err != nil {
					t.Error(err)
				}
				got <- all
			}
			if !tc.goesOn {
				time.AfterFunc(tc.stalled, recovers)
			}
			rest := st.FinishTerminal(ctx, func() bool { return !healthy.Load() })
			if tc.goesOn {
				go recovers()
			}
			if (rest != nil) != tc.goesOn {
				t.Errorf("the copy goes on: %v", rest != nil)
			}
			if all := <-got; !bytes.Equal(all, append(want, last...)) {
				t.Errorf("%d bytes reach the log, want %d", len(all), len(want)+len(last))
			}
			if rest != nil {
				<-rest
			}
		})
	}
}
