package handover

import (
	"context"

	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/crisock"
)

const kindKubelet = provision.KindKubelet

// Kinds reads and restores the objects of the tasks here.
func Kinds() map[string]provision.Kind {
	return map[string]provision.Kind{kindKubelet: kubeletKind{}, kindEngine: engineKind{}}
}

// kubeletKind is whether the kubelet runs.
type kubeletKind struct{}

// Read reports whether it does.
func (kubeletKind) Read(ctx context.Context, host provision.Host, _ string) (provision.State, error) {
	if !host.Live() {
		return provision.State{}, nil
	}
	running, err := kubeletRuns(ctx, host)
	return provision.State{Exists: running}, err
}

// Release does nothing. A kind that has it is restored last, when the old runtime is back.
func (kubeletKind) Release(context.Context, provision.Host, string, provision.State) error {
	return nil
}

// Restore starts it where it ran.
func (kubeletKind) Restore(ctx context.Context, host provision.Host, name string, state provision.State, _ provision.Content) error {
	if !state.Exists || !host.Live() {
		return nil
	}
	now, err := host.Units().State(ctx, name)
	if err != nil || now.Load != "loaded" || now.Active == "active" || now.Active == "activating" {
		return err // one that is not loaded went with its package
	}
	return host.Units().Start(ctx, name)
}

const (
	kindEngine = "berth-engine"
	berthUnit  = "berth.service"
)

// engineKind is the engine of berth's configuration.
type engineKind struct{}

// Read returns it as the attribute engine.
func (engineKind) Read(_ context.Context, host provision.Host, _ string) (provision.State, error) {
	return provision.State{Exists: true, Attrs: map[string]string{"engine": crisock.BerthsEngine(host.Files())}}, nil
}

// Release stops berth before the engine that it runs with: berth would start its supervisor again,
// and could not stop its pods without the engine. Berth's unit starts it again.
func (engineKind) Release(ctx context.Context, host provision.Host, name string, state provision.State) error {
	if !host.Live() || crisock.BerthsEngine(host.Files()) == state.Attrs["engine"] {
		return nil
	}
	now, err := host.Units().State(ctx, name)
	if err != nil || now.Active == "inactive" || now.Load == "not-found" {
		return err
	}
	return host.Units().Stop(ctx, name)
}

// Restore does nothing: the configuration is restored as a file.
func (engineKind) Restore(context.Context, provision.Host, string, provision.State, provision.Content) error {
	return nil
}
