package node

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/node/facts"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
	"github.com/berthrun/berth/internal/provision/node/runtimeconf"
	"github.com/berthrun/berth/internal/provision/tasks"
)

// berthConfigFile is the file that berth reads.
const berthConfigFile = "/etc/berth/berth.toml"

// forRuntime is the meta of a file that the runtime reads when it starts.
func (b *builder) forRuntime(why string) provision.Meta {
	return provision.Meta{Why: why, Needs: slices.Clone(b.installed), Restarts: []string{b.rt.unit}}
}

// runtimeConfig writes the runtime's own configuration.
func (b *builder) runtimeConfig() {
	m := b.model()
	if b.n.BerthOverDocker() {
		b.berthConfig(m)
	}
	if b.n.Runtime.Config.Override != "" {
		b.override()
		return
	}
	if b.rt.name == "docker" {
		keys, err := runtimeconf.Docker(m)
		if err != nil {
			b.fieldError(fieldOf(err), err)
			return
		}
		b.sameDriver("runtime.config.additions", keys)
		b.before(tasks.JSONKeys{M: b.forRuntime("runtime"), Path: b.rt.config, Set: keys})
		return
	}
	write := map[string]func(runtimeconf.Model) (string, error){
		"berth": runtimeconf.Berth, "containerd": runtimeconf.Containerd, "crio": runtimeconf.CRIO,
	}[b.rt.name]
	text, err := write(m)
	if err != nil {
		b.fieldError(fieldOf(err), err)
		return
	}
	b.before(tasks.File{M: b.forRuntime("runtime"), Path: b.rt.config, Content: text})
	b.imagePolicy()
}

// berthConfig writes the configuration of berth over docker.
func (b *builder) berthConfig(m runtimeconf.Model) {
	text, err := runtimeconf.BerthOverDocker(m)
	if err != nil {
		b.fieldError(fieldOf(err), err)
		return
	}
	b.before(tasks.File{
		M:    provision.Meta{Why: "runtime", Needs: slices.Clone(b.installed), Restarts: []string{facts.BerthUnit}},
		Path: berthConfigFile, Content: text,
	})
}

// sameDriver refuses a daemon.json whose cgroup driver is not that of the node: berth does not
// start over such a docker, and the kubelet would limit other cgroups than those of its pods.
func (b *builder) sameDriver(field string, keys map[string]any) {
	if !b.n.BerthOverDocker() {
		return
	}
	driver := "cgroupfs"
	if b.systemdCgroup() {
		driver = "systemd"
	}
	want := "native.cgroupdriver=" + driver
	options, _ := keys["exec-opts"].([]any)
	if !slices.Contains(options, any(want)) {
		b.fault(errs.Invalid, field, "exec-opts has no %q, which berth and the kubelet need; add it, or change runtime.cgroupDriver", want)
	}
}

// imagePolicy lets CRI-O pull images: without the file, which its package would bring, it refuses
// every image. An existing file stays.
func (b *builder) imagePolicy() {
	if b.rt.name != "crio" || len(b.n.Runtime.Assets) == 0 {
		return
	}
	b.before(tasks.File{
		M: b.forRuntime("runtime"), Path: "/etc/containers/policy.json", Once: true,
		Content: `{"default": [{"type": "insecureAcceptAnything"}]}` + "\n",
	})
}

// fieldOf is the field that an error of a writer begins with, or else the runtime.
func fieldOf(err error) string {
	field, _, _ := strings.Cut(err.Error(), ": ")
	if strings.HasPrefix(field, "runtime.") || strings.HasPrefix(field, "registries") {
		return field
	}
	return "runtime"
}

// override puts the user's file in place of ours. It replaces the whole file, docker's too, with
// the keys of other writers.
func (b *builder) override() {
	content := b.n.Runtime.Config.Override
	if content[len(content)-1] != '\n' {
		content += "\n"
	}
	var keys map[string]any
	if b.rt.name == "docker" && json.Unmarshal([]byte(content), &keys) == nil {
		b.sameDriver("runtime.config.override", keys)
	}
	b.before(tasks.File{M: b.forRuntime("runtime.config.override"), Path: b.rt.config, Content: content})
}

// registries configures where the runtime gets images from.
func (b *builder) registries() {
	if len(b.n.Registries) == 0 {
		return
	}
	if b.rt.certDir != "" {
		links, err := runtimeconf.CertLinks(b.rt.certDir, b.n.Registries)
		if err != nil {
			b.fieldError(fieldOf(err), err)
			return
		}
		for _, link := range links {
			b.before(tasks.Link{M: b.forRuntime("registries"), Path: link.Path, Target: link.Target})
		}
	}
	switch b.rt.name {
	case "berth", "containerd":
		files, err := runtimeconf.Hosts(b.n.Registries, b.f.Credentials)
		if err != nil {
			b.fieldError(fieldOf(err), err)
			return
		}
		for _, file := range files {
			task := tasks.File{
				// The runtime reads it at each pull: nothing restarts.
				M:    provision.Meta{Why: "registries", Needs: slices.Clone(b.installed)},
				Path: path.Join(b.rt.registryDir, file.Dir, "hosts.toml"), Content: file.Content, Secret: file.Secret,
			}
			if file.Secret {
				task.Mode = 0o600
			}
			b.before(task)
		}
	case "crio":
		text, err := runtimeconf.CRIORegistries(b.n.Registries)
		if err != nil {
			b.fieldError(fieldOf(err), err)
			return
		}
		b.before(tasks.File{M: b.forRuntime("registries"), Path: "/etc/containers/registries.conf.d/50-berth-node.conf", Content: text})
		b.noCredentials("crio takes none here; set crio.image.global_auth_file in runtime.config.additions")
	case "docker":
		b.noCredentials("docker takes them from its clients; leave this out, and use docker login")
	}
}

// noCredentials refuses credentials if the runtime has no setting for them.
func (b *builder) noCredentials(why string) {
	for i, reg := range b.n.Registries {
		if reg.Credentials != "" {
			b.fault(errs.Unsupported, fmt.Sprintf("registries[%d].credentials", i), "%s", why)
		}
		for j, m := range reg.Mirrors {
			if m.Credentials != "" {
				b.fault(errs.Unsupported, fmt.Sprintf("registries[%d].mirrors[%d].credentials", i, j), "%s", why)
			}
		}
	}
}

// crictl points crictl at the runtime.
func (b *builder) crictl() {
	c := b.n.Crictl
	if !nodefile.On(c.Enabled) || b.rt.socket == "" {
		return
	}
	text := "# Made by `berth node` from the node file. Changes here are undone; put them there.\n"
	text += fmt.Sprintf("runtime-endpoint: unix://%s\nimage-endpoint: unix://%s\n", b.rt.socket, b.rt.socket)
	if c.Timeout > 0 {
		text += fmt.Sprintf("timeout: %d\n", c.Timeout)
	}
	if c.Debug {
		text += "debug: true\n"
	}
	b.add(tasks.File{M: b.meta("crictl"), Path: "/etc/crictl.yaml", Content: text})
}

// digest is the hash of texts. It changes when one of them does.
func digest(texts ...string) string {
	hash := sha256.New()
	for _, text := range texts {
		hash.Write([]byte(text))
		hash.Write([]byte{0})
	}
	return hex.EncodeToString(hash.Sum(nil))
}
