package endings

import (
	"fmt"
	"strings"
	"sync"
	"syscall"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
)

// Unstarted has the exits of containers that have ended without a process: their start failed,
// or they were killed before it. The Docker Engine sends no event of them and keeps no time. It
// also has the requests of containers until they start: the error of a start is about a field.
type Unstarted struct {
	mu       sync.Mutex
	exits    map[string]engine.Exit
	requests map[string]*runtimeapi.ContainerConfig
}

// NewUnstarted returns one without containers.
func NewUnstarted() *Unstarted {
	return &Unstarted{exits: map[string]engine.Exit{}, requests: map[string]*runtimeapi.ContainerConfig{}}
}

// Created keeps the request of a container until Forget.
func (u *Unstarted) Created(id string, config *runtimeapi.ContainerConfig) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.requests[id] = config
}

// RequestOf returns the request of a container that was created and not started since berth's own
// start, nil for another.
func (u *Unstarted) RequestOf(id string) *runtimeapi.ContainerConfig {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.requests[id]
}

// Kill records that a container was killed before its start.
func (u *Unstarted) Kill(id string, sig syscall.Signal) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if _, ended := u.exits[id]; !ended {
		u.exits[id] = engine.Exit{ContainerID: id, Code: 128 + int32(sig), At: time.Now()} //nolint:gosec // 1 to 64
	}
}

// Of returns the exit of a container that the Docker Engine has created and not started. fault
// is what the engine says of a start that failed, "" if there was none.
func (u *Unstarted) Of(id, fault string) (exit engine.Exit, ended bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if exit, ended = u.exits[id]; ended || fault == "" {
		return exit, ended
	}
	exit = engine.Exit{
		ContainerID: id, Code: engine.CodeStartError, At: time.Now(), Reason: engine.ReasonStartError,
		Message: fmt.Sprintf("cannot start container %s: %s", id, strings.TrimSpace(fault)),
	}
	u.exits[id] = exit
	return exit, true
}

// Ended reports whether the end of a container without a process is known.
func (u *Unstarted) Ended(id string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	_, ended := u.exits[id]
	return ended
}

// Forget drops what is known of a container that has started, or is removed.
func (u *Unstarted) Forget(id string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.exits, id)
	delete(u.requests, id)
}
