// Package launch is the process between the supervisor and a program that works on containers, such as
// `runc create`, `runc start` and `runc exec --detach`. When the program fails or hangs, the launcher,
// which is a child subreaper, kills everything that the program has started.
//
// Some programs leave a process behind, which may end at once. It must not be reaped before the
// supervisor has opened it. The launcher becomes its parent, verifies that, reports the pid, and waits
// until the supervisor has opened the process. Then it ends, and the keeper becomes the parent.
package launch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysns"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// Role is the first argument of the program berth-supervisor as a launcher. The second one is an Order
// in JSON.
const Role = "launch"

// ConsolePlace is replaced by the path of the console's socket, in the arguments of an Order.
const ConsolePlace = "{console}"

// Order is what a launcher runs. Its descriptors 0 to 2 are those of the program. Descriptor 3 is a
// socket to the supervisor: the launcher writes a Result to it, and ends when it reads Released. When it
// reads the end of the socket before, or on SIGTERM, it kills all that the program has started, and ends.
type Order struct {
	// Args is the program's path and its arguments.
	Args []string `json:"args"`
	// Dir is the directory of PidFile and of the console's socket.
	Dir string `json:"dir"`
	// PidFile is the path of the file to which the program writes the pid of the process that it leaves,
	// "" when it leaves none.
	PidFile string `json:"pidFile,omitempty"`
	// Timeout bounds the program. It also holds after the end of the supervisor.
	Timeout time.Duration `json:"timeout"`
	// Lock is the path of a lock that the launcher holds until its end, "" for none. While another
	// process holds it, the program is not run.
	Lock string `json:"lock,omitempty"`
	// Persist lets the program complete its work when the supervisor ends before, and keeps what it has
	// left.
	Persist bool `json:"persist,omitempty"`
	// Daemon is true for a program that leaves processes and does not name them: Result.Left has them.
	Daemon bool `json:"daemon,omitempty"`
	// Apart gives the program a mount namespace of its own: what it mounts ends with it, also when it is killed,
	// and no one else sees it. Mounts and unmounts of the host still reach it. Apart is the name of its session keyring,
	// which the processes that it leaves keep; "" for neither.
	Apart string `json:"apart,omitempty"`
	// Covers gives the program a mount namespace of its own, too. In it, the directory of each value is mounted over
	// that of its key.
	Covers map[string]string `json:"covers,omitempty"`
	// OOMScoreAdj is that of the program and its children, until they change it; nil for the supervisor's.
	OOMScoreAdj *int `json:"oomScoreAdj,omitempty"`
	// PidfdFD is a descriptor: a socket to which the launcher sends a pidfd of the process.
	// ConsoleFD is another one, to which it sends the master of the process's terminal. 0 is none.
	PidfdFD   int `json:"pidfdFD,omitempty"`
	ConsoleFD int `json:"consoleFD,omitempty"`
}

// ControlFD is the descriptor of the socket to the supervisor.
const ControlFD = 3

// Released is the byte that the supervisor writes when it has opened the process of a Result.
const Released = 'r'

// Result is how the program ended.
type Result struct {
	// Done is true when it has done its work. Pid is that of the process that it has left.
	Done bool `json:"done,omitempty"`
	Pid  int  `json:"pid,omitempty"`
	// Left has the processes that a daemon's program has left.
	Left []int `json:"left,omitempty"`
	// Error is why it has not.
	Error string `json:"error,omitempty"`
	// TimedOut is true when the program did not end in time.
	TimedOut bool `json:"timedOut,omitempty"`

	// Busy is true when another process has the lock, so that the program did not run.
	Busy bool `json:"busy,omitempty"`

	// lost is true when the launcher has not reported anything.
	lost bool
}

const (
	// consoleTimeout bounds the wait for the terminal, once the program has ended.
	consoleTimeout = 2 * time.Second
	// killTimeout bounds the wait for the end of killed processes.
	killTimeout = 5 * time.Second
)

// Run is the main function of a launcher.
func Run(text string) error {
	var order Order
	if err := json.Unmarshal([]byte(text), &order); err != nil || len(order.Args) == 0 {
		return fmt.Errorf("cannot read the order: %w", errors.Join(err, errors.New("no program")))
	}
	control := os.NewFile(ControlFD, "control")
	// The program's children must not have berth's descriptors.
	for _, fd := range []int{ControlFD, order.PidfdFD, order.ConsoleFD} {
		if fd == 0 {
			continue
		}
		if err := sysfd.SetCloseOnExec(fd, true); err != nil {
			return err
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	l := &launcher{order: &order, ended: make(chan struct{})}
	result := l.lockAndLaunch(ctx, control)
	if !result.Done {
		killChildren()
	}
	_ = json.NewEncoder(control).Encode(result) // when the supervisor has ended, l.ended is closed
	select {
	case <-l.ended:
		if !l.released && !order.Persist { // no one has recorded what the program has left
			killChildren()
		}
	case <-ctx.Done(): // the supervisor does not want what the program has left
		killChildren()
	}
	return nil
}

// lockAndLaunch runs the program, unless the supervisor has ended before: then its successor may have
// removed the container, with the lock in its hands, and would not find what the program makes. A program without a
// lock that persists runs.
func (l *launcher) lockAndLaunch(ctx context.Context, control *os.File) Result {
	lockErr := l.takeLock()
	var buf [1]byte
	_, _, err := syscall.Recvfrom(ControlFD, buf[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	go l.awaitEnd(control) // Run waits for it, whatever the result
	switch {
	case lockErr != nil:
		return failed(lockErr)
	case err == nil && (!l.order.Persist || l.order.Lock != ""):
		return failed(errors.New("the supervisor has ended"))
	}
	return l.launch(ctx)
}

type launcher struct {
	order *Order
	// ended is closed when the supervisor has written Released, or has ended. Then released says which.
	ended    chan struct{}
	released bool
	// lock ends with the process.
	lock *sysfd.Lock
}

func (l *launcher) awaitEnd(control *os.File) {
	var buf [1]byte
	n, _ := control.Read(buf[:])
	l.released = n == 1 && buf[0] == Released
	close(l.ended)
}

// launch runs the program, and finds the process that it leaves.
func (l *launcher) launch(ctx context.Context) Result {
	ctx, cancel := context.WithTimeout(ctx, l.order.Timeout)
	defer cancel()
	if err := sysproc.SetSubreaper(); err != nil {
		return failed(err)
	}
	if score := l.order.OOMScoreAdj; score != nil {
		if err := sysproc.SetOOMScoreAdj(*score); err != nil && !errors.Is(err, errs.Unsupported) {
			return failed(err)
		}
	}
	args := slices.Clone(l.order.Args)
	console := func(context.Context) error { return nil }
	if l.order.ConsoleFD != 0 {
		c, err := listenConsole(l.order.Dir, l.order.ConsoleFD)
		if err != nil {
			return failed(err)
		}
		defer c.close()
		console = c.await
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], ConsolePlace, c.path)
		}
	}
	// Its context would kill it alone; killChildren kills its children, too.
	cmd := exec.Command(args[0], args[1:]...) //nolint:noctx // see above
	cmd.Dir = l.order.Dir
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	done, err := run(cmd, l.order)
	if err != nil {
		return failed(err)
	}
	ended := l.ended
	if l.order.Persist {
		ended = nil
	}
	select {
	case err := <-done:
		if err != nil {
			return failed(err)
		}
	case <-ended:
		return failed(errors.New("the supervisor has ended"))
	case <-ctx.Done():
		return Result{Error: "it does not end", TimedOut: errors.Is(ctx.Err(), context.DeadlineExceeded)}
	}
	if l.order.Daemon {
		os.Stdout.Close() // the supervisor waits for the end of the output
		os.Stderr.Close()
		return Result{Done: true, Left: children()}
	}
	if l.order.PidFile == "" {
		return Result{Done: true}
	}
	pid, err := l.leftProcess()
	if err == nil {
		err = console(ctx)
	}
	if err == nil && l.order.PidfdFD != 0 {
		err = sendPidfd(pid, l.order.PidfdFD)
	}
	if err != nil {
		return failed(err)
	}
	return Result{Done: true, Pid: pid}
}

// run starts a program, and sends its end. The program is killed when this process is: the supervisor removes what it has
// made, and must not meet it at work.
func run(cmd *exec.Cmd, order *Order) (ended <-chan error, err error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, done := make(chan error, 1), make(chan error, 1)
	// The signal comes with the end of the thread that has started the program. So the thread waits for it. It is not
	// unlocked: it ends with its namespaces.
	sysns.GoOnThread(func() {
		err := goApart(order)
		if err == nil {
			err = cmd.Start()
		}
		started <- err
		if err == nil {
			done <- cmd.Wait()
		}
	})
	return done, <-started
}

// goApart gives this thread what the program of the order has of its own.
func goApart(order *Order) error {
	program := order.Args[0]
	if order.Apart == "" && len(order.Covers) == 0 {
		return nil
	}
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("cannot make a mount namespace for %s: %w", program, err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("cannot make the mounts of %s its own: %w", program, err)
	}
	for below, dir := range order.Covers {
		if err := unix.Mount(dir, below, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("cannot mount %s over %s for %s: %w", dir, below, program, err)
		}
	}
	if order.Apart == "" {
		return nil
	}
	// A kernel without keyrings has no keys of the supervisor's session.
	if _, err := unix.KeyctlJoinSessionKeyring(order.Apart); err != nil && !errors.Is(err, unix.ENOSYS) {
		return fmt.Errorf("cannot make a session keyring for %s: %w", program, err)
	}
	return nil
}

func failed(err error) Result { return Result{Error: err.Error(), Busy: errors.Is(err, errBusy)} }

// leftProcess returns the process that the program names in its file. It must be a child of the
// launcher: only what the program has started becomes one.
func (l *launcher) leftProcess() (int, error) {
	data, err := os.ReadFile(l.order.PidFile)
	if err != nil {
		return 0, errors.New("it ended without an error and has written no pid")
	}
	text := bytes.TrimSpace(data)
	pid, err := strconv.Atoi(string(text))
	if err != nil || pid <= 0 {
		return 0, fmt.Errorf("it has written %.40q in the place of a pid", text)
	}
	proc, err := sysproc.ReadProc(pid)
	if err != nil || proc.PPid != os.Getpid() {
		return 0, fmt.Errorf("it has written the pid %d, which is not a process that it has started", pid)
	}
	return pid, nil
}

func sendPidfd(pid, socket int) error {
	pidfd, err := sysproc.OpenPidfd(pid)
	if err != nil {
		return err
	}
	defer pidfd.Close()
	return sendFile(socket, pidfd)
}

// killChildren kills the children of the launcher, and their children, which become its own.
func killChildren() {
	for deadline := time.Now().Add(killTimeout); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		for _, pid := range children() {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		}
		for {
			pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			if errors.Is(err, syscall.ECHILD) {
				return
			}
			if err != nil || pid == 0 {
				break
			}
		}
	}
}

func children() []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if proc, err := sysproc.ReadProc(pid); err == nil && proc.PPid == os.Getpid() {
			pids = append(pids, pid)
		}
	}
	return pids
}
