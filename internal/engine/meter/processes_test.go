package meter

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/engine"
)

// TestCountedDescriptors: all descriptors are counted. Their kinds are determined up to a limit, so
// that a container with many cheap descriptors cannot keep the daemon busy.
func TestCountedDescriptors(t *testing.T) {
	socket, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	file, err := socket.(*net.UDPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	reader := func(copies int) int {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "sh", "-c", "echo ready; read x")
		for range copies {
			cmd.ExtraFiles = append(cmd.ExtraFiles, file)
		}
		in, inErr := cmd.StdinPipe()
		out, outErr := cmd.StdoutPipe()
		if err := errors.Join(inErr, outErr, cmd.Start()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { in.Close(); _ = cmd.Wait() })
		if _, err := out.Read(make([]byte, 10)); err != nil { // it opens nothing more
			t.Fatal(err)
		}
		return cmd.Process.Pid
	}
	few, many := reader(5), reader(300)
	all := &engine.Details{}
	countOpen(all, []int{few, many, 1 << 30}, 1000)
	// The copies, and three of each shell. A few may be inherited from this process.
	if all.FileDescriptors < 311 || all.FileDescriptors > 330 || all.Sockets < 305 || all.Sockets > 320 {
		t.Errorf("%d descriptors, %d sockets, want 311 and 305", all.FileDescriptors, all.Sockets)
	}
	some := &engine.Details{}
	countOpen(some, []int{few, many, 1 << 30}, 100)
	if some.Sockets > 100 || some.Sockets < 80 {
		t.Errorf("with 100 looks: %d sockets", some.Sockets)
	}
	if sized(t) && some.FileDescriptors != all.FileDescriptors {
		t.Errorf("with 100 looks: %d descriptors, want %d", some.FileDescriptors, all.FileDescriptors)
	}
}

// sized reports whether the kernel reports the number of a process's descriptors (since 6.2).
func sized(t *testing.T) bool {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/fd", &st); err != nil {
		t.Fatal(err)
	}
	if st.Size == 0 {
		t.Log("the kernel does not tell how many descriptors there are")
	}
	return st.Size > 0
}

// TestDescriptorsOfEndedProcesses: a process that ends during the count does not count.
func TestDescriptorsOfEndedProcesses(t *testing.T) {
	d := &engine.Details{}
	countOpen(d, []int{1 << 30}, 10)
	if d.FileDescriptors != 0 || d.Sockets != 0 {
		t.Errorf("%d descriptors, %d sockets", d.FileDescriptors, d.Sockets)
	}
	countOpen(d, []int{os.Getpid()}, 0)
	if d.Sockets != 0 {
		t.Errorf("%d sockets without a look", d.Sockets)
	}
}
