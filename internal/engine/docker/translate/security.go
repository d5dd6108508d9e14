package translate

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/ocispec/request"
)

// setSecurity sets capabilities, profiles, labels and paths.
func setSecurity(in ContainerInput, host *container.HostConfig) error {
	security := request.Security(in.Spec.Config)
	if err := setCapabilities(in, host); err != nil {
		return err
	}
	options, err := seccompOption(in.Seccomp)
	if err != nil {
		return err
	}
	profile := in.AppArmor
	if profile == "" {
		profile = "unconfined"
	}
	if in.Facts.AppArmor {
		options = append(options, "apparmor="+profile)
	}
	if in.Facts.SELinux {
		options = append(options, labelOptions(security.GetSelinuxOptions())...)
	}
	if security.GetNoNewPrivs() {
		options = append(options, "no-new-privileges")
	}
	host.SecurityOpt = options
	// nil would be the engine's own lists.
	host.MaskedPaths, host.ReadonlyPaths = []string{}, []string{}
	if !host.Privileged { // the kubelet names the paths for privileged containers, too
		host.MaskedPaths = append(host.MaskedPaths, security.GetMaskedPaths()...)
		host.ReadonlyPaths = append(host.ReadonlyPaths, security.GetReadonlyPaths()...)
	}
	return nil
}

// setCapabilities names every capability, so that the engine's default set does not matter. It
// leaves ALL to the engine, which may know fewer capabilities than berth does.
func setCapabilities(in ContainerInput, host *container.HostConfig) error {
	if host.Privileged {
		return nil
	}
	every := ocispec.Host{Capabilities: request.AllCapabilities()}
	sets, err := ocispec.Capabilities(in.Spec.Config, every, in.Defaults.Capabilities)
	if err != nil {
		return err
	}
	asked, err := request.CapabilitiesOf(in.Spec.Config)
	if err != nil {
		return err
	}
	const all = "ALL"
	if slices.Contains(asked.Add, all) && !slices.Contains(asked.Drop, all) {
		host.CapAdd = []string{all}
		host.CapDrop = slices.DeleteFunc(request.AllCapabilities(), func(name string) bool { return slices.Contains(sets.Permitted, name) })
		return nil
	}
	host.CapDrop, host.CapAdd = []string{all}, sets.Permitted
	return nil
}

// seccompOption is the option of a filter, in the form of the profiles that the engine reads.
func seccompOption(filter *specs.LinuxSeccomp) ([]string, error) {
	if filter == nil {
		return []string{"seccomp=unconfined"}, nil
	}
	profile := seccomp.Seccomp{LinuxSeccomp: specs.LinuxSeccomp{
		DefaultAction: filter.DefaultAction, DefaultErrnoRet: filter.DefaultErrnoRet, Architectures: filter.Architectures,
		Flags: filter.Flags, ListenerPath: filter.ListenerPath, ListenerMetadata: filter.ListenerMetadata,
	}}
	for i := range filter.Syscalls {
		call := filter.Syscalls[i]
		profile.Syscalls = append(profile.Syscalls, &seccomp.Syscall{LinuxSyscall: call})
	}
	text, err := json.Marshal(profile)
	if err != nil {
		return nil, fmt.Errorf("cannot encode the seccomp profile: %w", err)
	}
	return []string{"seccomp=" + string(text)}, nil
}

// labelOptions are the options of SELinux labels.
func labelOptions(options *runtimeapi.SELinuxOption) []string {
	var out []string
	for _, part := range []struct{ name, value string }{
		{"user", options.GetUser()}, {"role", options.GetRole()}, {"type", options.GetType()}, {"level", options.GetLevel()},
	} {
		if part.value != "" {
			out = append(out, "label="+part.name+":"+part.value)
		}
	}
	return out
}
