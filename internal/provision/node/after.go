package node

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
	"github.com/berthrun/berth/internal/provision/preload"
	"github.com/berthrun/berth/internal/provision/tasks"
)

// images loads archives into the runtime when it runs.
func (b *builder) images() {
	for i, image := range b.imagesOfArch() {
		task := preload.Archive{
			M: provision.Meta{Why: fmt.Sprintf("images[%d]", i), Needs: []string{"unit " + b.rt.criUnit}},
			Ref: provision.AssetRef{
				Name: image.Names[0], Sources: append([]string{image.Source}, image.Mirrors...), Digest: image.Digest, Format: "raw",
				Access: provision.Access(image.Access),
			},
			Names: image.Names,
		}
		switch {
		case b.rt.name == "berth" || b.n.BerthOverDocker():
			task.Load = []string{b.berthBinary(), "image", "import", "--endpoint", "unix://" + b.rt.socket, "--pin"}
		case b.rt.name == "containerd":
			task.Load = []string{"ctr", "--address", b.rt.socket, "-n", "k8s.io", "images", "import", "-"}
			task.Delay = 15 * time.Second // by an event
		case b.rt.name == "docker":
			task.Load, task.Has = []string{"docker", "load"}, []string{"docker", "image", "inspect"}
		case b.rt.name == "crio":
			task.Load = []string{"podman", "load"}
			if b.n.Runtime.Root != "" {
				task.Load = []string{"podman", "--root", b.n.Runtime.Root, "load"}
			}
		}
		if b.rt.socket != "" {
			task.CRI = "unix://" + b.rt.socket
		}
		b.add(task)
	}
}

func (b *builder) imagesOfArch() []nodefile.Image {
	return slices.DeleteFunc(slices.Clone(b.n.Images), func(i nodefile.Image) bool { return i.Arch != "" && i.Arch != b.f.Arch })
}

// imageTasks are what the kubelet waits for, so that no pod pulls what is to be loaded.
func (b *builder) imageTasks() []string {
	var ids []string
	for _, task := range b.target.Tasks {
		if image, ok := task.(preload.Archive); ok {
			ids = append(ids, image.ID())
		}
	}
	return ids
}

func (b *builder) berthBinary() string { return b.f.Distro.BinDir + "/berth" }

// logs rotates container logs where no kubelet does; docker's rotate themselves.
func (b *builder) logs() {
	if !b.n.Logs.Rotate || b.rt.name == "docker" {
		return
	}
	size := b.n.Logs.MaxSize
	for _, unit := range []string{"K", "M", "G"} {
		if n := len(size); n > 2 && size[n-2:] == unit+"i" {
			size = size[:n-1]
		}
	}
	b.add(tasks.File{M: b.meta("logs"), Path: "/etc/logrotate.d/berth-node", Content: fmt.Sprintf(
		"# Made by `berth node` from the node file. Changes here are undone; put them there.\n"+
			"/var/log/pods/*/*/*.log {\n\tsize %s\n\trotate %d\n\tcopytruncate\n\tmissingok\n\tnotifempty\n\tcompress\n}\n", size, b.n.Logs.MaxFile)})
}

const (
	bootUnit  = "berth-node.service"
	bootTimer = "berth-node.timer"
)

// boot makes the node apply its node file by itself: at boot, and on a timer.
func (b *builder) boot() {
	boot := b.n.Boot
	if !boot.Enabled && !(b.f.Distro.Immutable && b.rt.packaged) {
		return
	}
	if b.f.File == "" {
		b.fault(errs.Invalid, "boot.enabled", "the node file must be on the machine; write it to /etc/berth/node.yaml and apply that")
		return
	}
	yes := true
	limits, again := b.tryAgain()
	service := tasks.Unit{
		M:    b.meta("boot"),
		Name: bootUnit, Enable: &yes,
		Content: unitText(
			section{"Unit", append([]string{
				"Description=applies the node file of berth", "Documentation=https://github.com/berthrun/berth",
				"Wants=network-online.target", "After=network-online.target local-fs.target dbus.service",
			}, limits...)},
			section{"Service", append(again, "Type=oneshot", "ExecStart="+unitQuote(b.berthBinary())+" node apply --yes --wait --file "+unitQuote(b.f.File))},
			installed()),
	}
	b.add(service)
	if boot.Drift == 0 {
		return
	}
	every := int(time.Duration(boot.Drift).Seconds())
	b.add(tasks.Unit{
		M:    b.meta("boot.driftInterval", service.ID()),
		Name: bootTimer, Enable: &yes, Running: tasks.Started,
		Content: unitText(
			section{"Unit", []string{"Description=applies the node file of berth again"}},
			section{"Timer", []string{
				// The service has not run yet when apply starts the timer, so the timer can count
				// only from its own start.
				fmt.Sprintf("OnActiveSec=%ds", every), fmt.Sprintf("OnUnitInactiveSec=%ds", every),
				"RandomizedDelaySec=30", "Unit=" + bootUnit,
			}},
			section{"Install", []string{"WantedBy=timers.target"}}),
	})
}

const (
	// bootTries is how often the boot unit starts within bootTriesFor if each start fails. The
	// period leaves time for slow tries.
	bootTries    = 8
	bootTriesFor = 6 * time.Hour
	// bootPause is between two of them.
	bootPause = 5 * time.Minute
)

// tryAgain makes the boot unit, of type oneshot, start again after a failure, and stay failed after
// the last try. A frequent timer retries by itself, so its starts are not limited. systemd before
// 244 refuses to restart such a unit.
func (b *builder) tryAgain() (unit, service []string) {
	major, _, _ := strings.Cut(b.f.Distro.Version, ".")
	old := b.f.Distro.Family == "rhel" && major == "8" || b.f.Distro.ID == "debian" && major == "10"
	every := time.Duration(b.n.Boot.Drift)
	if old || every > 0 && every <= time.Hour {
		return []string{"StartLimitIntervalSec=0"}, nil
	}
	starts := bootTries
	if every > 0 {
		starts += int(bootTriesFor / every)
	}
	return []string{fmt.Sprintf("StartLimitIntervalSec=%ds", int(bootTriesFor.Seconds())), fmt.Sprintf("StartLimitBurst=%d", starts)},
		[]string{"Restart=on-failure", fmt.Sprintf("RestartSec=%ds", int(bootPause.Seconds()))}
}
