package nri

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/proto"
)

// isReport reports whether an event only says what has happened, so that an error of a plugin is logged.
func isReport(event string) bool {
	return slices.Contains([]string{
		"PostUpdatePodSandbox", "StopPodSandbox", "RemovePodSandbox", "PostCreateContainer", "PostStartContainer",
		"PostUpdateContainer", "StopContainer", "RemoveContainer",
	}, event)
}

// unimplemented is the status of a plugin that lacks a method. The library then calls stateChange, the method of older plugins.
const (
	unimplemented = 12
	stateChange   = "StateChange"
)

// call makes one call to a plugin. The library ends an event at the first plugin that answers with an error, and the
// plugins after it would not get what has happened: those errors are kept for RecordPluginInvocation, and are none for
// the library.
func (t *table) call(ctx context.Context, request *ttrpc.Request, response *ttrpc.Response, info *ttrpc.UnaryClientInfo, invoke ttrpc.Invoker) error {
	began := time.Now()
	err := bounded(ctx, request, response, info, invoke)
	if deadline, bound := ctx.Deadline(); bound && errors.Is(err, context.DeadlineExceeded) {
		err = &silence{eventOf(request), deadline.Sub(began).Round(time.Millisecond)}
	}
	status := response.GetStatus()
	if request.Method == configure && (err != nil || status.GetCode() != 0) {
		t.notConfigured(cmp.Or(err, errors.New(status.GetMessage())))
	}
	if err != nil {
		return broken(ctx, err)
	}
	if event := eventOf(request); status.GetCode() != 0 && status.GetCode() != unimplemented && isReport(event) {
		t.mu.Lock()
		t.refused = &refusal{event, errors.New(status.GetMessage())}
		t.mu.Unlock()
		response.Status, response.Payload = nil, nil
	}
	return nil
}

// silence is the error of a call that a plugin has not answered in time.
type silence struct {
	event string
	wait  time.Duration
}

func (s *silence) Error() string {
	return fmt.Sprintf("the plugin has not answered %s within %v", s.event, s.wait)
}

// Unwrap lets the library see a timeout.
func (s *silence) Unwrap() error { return context.DeadlineExceeded }

// broken makes an error of the connection to a plugin one with which the library closes the connection. For some of
// them, such as a reset, the library would end the event, and report it to no further plugin.
func broken(ctx context.Context, err error) error {
	if ctx.Err() != nil || errors.Is(err, ttrpc.ErrClosed) {
		return err
	}
	return fmt.Errorf("%w: %w", ttrpc.ErrClosed, err)
}

// refusal is the error with which a plugin has answered an event.
type refusal struct {
	event string
	err   error
}

// takeRefusal returns the error that call has kept, nil for none. The library makes one call at a time, and reports
// each before the next one. The caller has the lock.
func (t *table) takeRefusal(event string) error {
	kept := t.refused
	t.refused = nil
	if kept == nil || kept.event != event {
		return nil
	}
	return kept.err
}

// eventOf returns the name of the event of a call.
func eventOf(request *ttrpc.Request) string {
	if request.Method != stateChange {
		return request.Method
	}
	change := &api.StateChangeEvent{}
	if err := proto.Unmarshal(request.Payload, change); err != nil {
		return ""
	}
	return change.GetEvent().PrettyName()
}
