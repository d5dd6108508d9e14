package provider

import (
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/distribution/reference"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/errs"
)

// runArgs are the arguments of the call that creates and starts a container.
func (e *CLI) runArgs(r Request, spec Spec, addresses []netip.Addr, attempt string) ([]string, error) {
	args := []string{"run", "--name", spec.Name, "--hostname", spec.Name, "--detach", "--tty", "--net", r.Network.Name, "--restart=" + e.restart}
	args = append(args, e.flags...)
	if spec.Privileged {
		args = append(append(args, "--privileged"), e.guest...)
	}
	// The signal on which systemd halts. Node images set it, other images may not. Other programs
	// in a node image do not know it.
	signal := "SIGRTMIN+3"
	if spec.Command != nil {
		signal = "SIGTERM"
	}
	args = append(args, "--stop-signal", signal)
	if e.remap && e.facts.UserRemap {
		args = append(args, "--userns=host")
	}
	labels := r.Labels(spec)
	labels[LabelAttempt] = attempt
	if len(addresses) > 0 {
		var texts []string
		for _, a := range addresses {
			texts = append(texts, a.String())
			flag := "--ip6"
			if a.Is4() {
				flag = "--ip"
			}
			args = append(args, flag, a.String())
		}
		labels[LabelAddresses] = strings.Join(texts, ",")
		if e.facts.ChosenLinks {
			args = append(args, "--mac-address", linkAddress(addresses[0]).String())
		}
	}
	args = pairs(args, "--label", labels)
	args = pairs(args, "-e", withoutSecrets(spec.Env))
	if secretFile(spec.Env) != nil {
		args = append(args, "--env-file", "/dev/stdin")
	}
	args = pairs(args, "--sysctl", spec.Sysctls)
	args, err := e.storageArgs(args, spec.Container)
	if err != nil {
		return nil, err
	}
	for _, p := range spec.Ports {
		if err := e.leads(p); err != nil {
			return nil, err
		}
		args = append(args, "--publish="+e.publish(p))
	}
	image := e.imageName(spec.Image)
	if len(spec.Command) == 0 {
		return append(args, image), nil
	}
	args = append(args, "--entrypoint", spec.Command[0], image)
	return append(args, spec.Command[1:]...), nil
}

// isSecret reports whether a variable must not be on a command line, which every user of the host
// sees: a proxy with a user name and password. A value with a line break cannot be in a file.
func isSecret(value string) bool {
	return strings.Contains(value, "@") && !strings.Contains(value, "\n")
}

func withoutSecrets(env map[string]string) map[string]string {
	shown := maps.Clone(env)
	maps.DeleteFunc(shown, func(_, value string) bool { return isSecret(value) })
	return shown
}

// secretFile has the variables that withoutSecrets leaves out, in the format of --env-file; nil for
// none.
func secretFile(env map[string]string) io.Reader {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if isSecret(env[name]) {
			fmt.Fprintf(&text, "%s=%s\n", name, env[name])
		}
	}
	if text.Len() == 0 {
		return nil
	}
	return strings.NewReader(text.String())
}

// storageArgs are mounts: those of the plan, and those that this engine's storage needs.
func (e *CLI) storageArgs(args []string, c plan.Container) ([]string, error) {
	for _, target := range c.Tmpfs {
		args = append(args, "--tmpfs", target)
	}
	for _, v := range c.Volumes {
		volume := v.Name + ":" + v.Target
		if e.volumeOptions && len(v.Options) > 0 {
			volume += ":" + strings.Join(v.Options, ",")
		}
		args = append(args, "--volume", volume)
	}
	for _, m := range c.Mounts {
		volume, err := bind(m)
		if err != nil {
			return nil, err
		}
		args = append(args, "--volume", volume)
	}
	if !c.Privileged {
		return args, nil
	}
	if e.mapper && e.facts.mapped() && (e.rootlessMapper || !e.facts.Rootless) {
		args = append(args, "--volume", "/dev/mapper:/dev/mapper")
	}
	if e.facts.Rootless {
		// For fuse-overlayfs: overlay in a user namespace works on newer kernels only.
		args = append(args, "--device", "/dev/fuse")
	}
	return args, nil
}

// bind is a mount of a path of the host.
func bind(m plan.Mount) (string, error) {
	if strings.Contains(m.Source, ":") || strings.Contains(m.Target, ":") {
		return "", fmt.Errorf("cannot mount %q at %q: container engines take no path with a colon: %w", m.Source, m.Target, errs.Invalid)
	}
	var options []string
	if m.ReadOnly {
		options = append(options, "ro")
	}
	if m.Relabel {
		options = append(options, "Z")
	}
	switch m.Propagation {
	case config.PropagateBidirectional:
		options = append(options, "rshared")
	case config.PropagateHostToContainer:
		options = append(options, "rslave")
	}
	volume := m.Source + ":" + m.Target
	if len(options) > 0 {
		volume += ":" + strings.Join(options, ",")
	}
	return volume, nil
}

// leads refuses a port that the engine would accept, but that would be unreachable. A port without
// a field is for other tools, and nodes work without it.
func (e *CLI) leads(p plan.Port) error {
	if p.Listen != "::1" || p.Field == "" || e.facts.Loopback6 {
		return nil
	}
	return fmt.Errorf("%s leads no port of ::1 into containers: %s needs another address, such as 127.0.0.1 (networking.apiServerAddress is that of the API): %w", e.name, p.Field, errs.Unsupported)
}

// publish renders a port, as in 127.0.0.1:8080:80/tcp.
func (e *CLI) publish(p plan.Port) string {
	host := strconv.Itoa(p.Host)
	if p.Host == config.EnginePort || p.Host == config.FreePort {
		host = e.anyPort
	}
	return fmt.Sprintf("%s:%d/%s", net.JoinHostPort(p.Listen, host), p.Container, strings.ToLower(string(p.Protocol)))
}

// pairs adds a flag for each entry, sorted.
func pairs(args []string, flag string, entries map[string]string) []string {
	for _, key := range slices.Sorted(maps.Keys(entries)) {
		args = append(args, flag, key+"="+entries[key])
	}
	return args
}

// qualified is an image's name in podman's form: with a registry, by default docker's, and without
// a tag if there is a digest. An invalid name stays unchanged, and podman refuses it.
func qualified(image string) string {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return image
	}
	if digested, ok := named.(reference.Digested); ok {
		return reference.TrimNamed(named).Name() + "@" + digested.Digest().String()
	}
	return named.String()
}
