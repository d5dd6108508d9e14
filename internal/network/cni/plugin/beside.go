package plugin

import (
	"context"
	"sync"

	"github.com/containernetworking/cni/pkg/invoke"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/berthrun/berth/internal/errs"
)

// BesideExec is an invoke.Exec that can run some plugins beside the plugin that calls them.
type BesideExec interface {
	// Beside returns an Exec for ADD of the plugin at path with a configuration, if that works with files alone: it then
	// needs no link of the pod, and may run while its caller makes one. stage gets the name of what it does, each time that it
	// changes. Nil for a plugin that may not.
	Beside(path string, config []byte, stage func(name string)) invoke.Exec
}

// AddBeside begins ADD of another plugin with the configuration of this call, on a goroutine of its own. The caller calls
// wait before it returns, for what the plugin has returned. AddBeside returns nil for a plugin that may not
// run beside its caller.
func (c *Call) AddBeside(ctx context.Context, plugin string) (wait func() (*types100.Result, error)) {
	can, ok := c.env.Exec.(BesideExec)
	if !ok {
		return nil
	}
	path, args, err := c.delegate("ADD", plugin)
	if err != nil {
		return nil // DelegateAdd reports it
	}
	stage := &besideStage{}
	exec := can.Beside(path, c.Config, stage.enter)
	if exec == nil {
		return nil
	}
	var result *types100.Result
	var fault error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		fault = errs.Guard("ADD of the CNI plugin "+plugin, func() (err error) {
			result, err = addOf(ctx, path, c.Config, args, exec)
			return err
		})
	}()
	return func() (*types100.Result, error) {
		if c.env.Stage != nil {
			stage.show(c.env.Stage)
		}
		<-ended
		return result, fault
	}
}

// besideStage is the stage of a plugin that runs beside its caller. The caller's own is the one to show, until it waits.
type besideStage struct {
	mu   sync.Mutex
	name string
	to   func(string)
}

func (s *besideStage) enter(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.name = name
	if s.to != nil {
		s.to(name)
	}
}

func (s *besideStage) show(to func(string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.to = to
	if s.name != "" {
		to(s.name)
	}
}
