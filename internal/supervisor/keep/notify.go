package keep

import (
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/sys/sysfd"
)

// notifier sends messages to systemd; with an empty path (no systemd) it sends none. The keeper
// works without systemd: a message that cannot be sent is logged here.
type notifier struct {
	path string
	// main is false for a keeper after a take-over: systemd's main process of the unit is the
	// keeper that stands by for it.
	main bool
	log  *slog.Logger
}

// fdStore is systemd's store of descriptors for a unit.
type fdStore = notifier

// firstListenFD is where systemd puts the first stored descriptor.
const firstListenFD = 3

// Environment of a unit that its children must not see.
func unitEnvironment() []string {
	return []string{"NOTIFY_SOCKET", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PIDFDID", "WATCHDOG_PID", "WATCHDOG_USEC"}
}

// ready reports that the service is up, and which process is its main one.
func (n notifier) ready(status string) {
	state := "READY=1\nSTATUS=" + status
	if n.main {
		state += fmt.Sprintf("\nMAINPID=%d", os.Getpid())
	}
	n.send(state, nil)
}

// push stores fds under key. One message and one name per descriptor: systemd
// keeps no order among those of one name. FDPOLL=0, since a pidfd or a pipe whose
// other end has closed is still worth keeping.
func (n fdStore) push(key string, fds []int) {
	for i, fd := range fds {
		n.send("FDSTORE=1\nFDPOLL=0\nFDNAME="+storedName(key, i), []int{fd})
	}
}

// remove drops the count descriptors of key.
func (n fdStore) remove(key string, count int) {
	for i := range count {
		n.send("FDSTOREREMOVE=1\nFDNAME="+storedName(key, i), nil)
	}
}

func (n notifier) send(state string, fds []int) {
	const timeout = 2 * time.Second
	if n.path == "" {
		return
	}
	if err := sysfd.SendDatagram(n.path, []byte(state), fds, timeout); err != nil {
		n.log.Warn("cannot notify systemd", "state", state, "error", err)
	}
}

func storedName(key string, index int) string { return key + "#" + strconv.Itoa(index) }

// storedFDs returns the descriptors that systemd gave this process at its start: those in the
// store by key, in order, and those that have no name of ours.
func storedFDs(getenv func(string) string, pid int) (held map[string][]int, unknown []int) {
	held = map[string][]int{}
	count, err := strconv.Atoi(getenv("LISTEN_FDS"))
	if err != nil || getenv("LISTEN_PID") != strconv.Itoa(pid) {
		return held, nil
	}
	names := strings.Split(getenv("LISTEN_FDNAMES"), ":")
	indexed := map[string]map[int]int{}
	for i := range count {
		fd := firstListenFD + i
		key, index, ok := "", 0, false
		if i < len(names) {
			key, index, ok = parseStoredName(names[i])
		}
		if _, taken := indexed[key][index]; !ok || taken {
			unknown = append(unknown, fd)
			continue
		}
		if indexed[key] == nil {
			indexed[key] = map[int]int{}
		}
		indexed[key][index] = fd
	}
	for key, byIndex := range indexed {
		fds, whole := inOrder(byIndex)
		if whole {
			held[key] = fds
		} else {
			unknown = append(unknown, fds...)
		}
	}
	return held, unknown
}

// inOrder lists descriptors by index; whole is false when one is missing: a set
// that was pushed in part was never acknowledged.
func inOrder(byIndex map[int]int) (fds []int, whole bool) {
	whole = true
	for i := range maxHold {
		fd, ok := byIndex[i]
		if ok {
			fds = append(fds, fd)
		}
		whole = whole && ok == (i < len(byIndex))
	}
	return fds, whole
}

func parseStoredName(name string) (key string, index int, ok bool) {
	at := strings.LastIndexByte(name, '#')
	if at < 0 {
		return "", 0, false
	}
	index, err := strconv.Atoi(name[at+1:])
	if err != nil || index < 0 || index >= maxHold || checkKey(name[:at]) != nil {
		return "", 0, false
	}
	return name[:at], index, true
}
