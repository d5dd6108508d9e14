package render

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/startpolicy"
	"github.com/berthrun/berth/internal/provision/tasks"
)

const (
	// packAt is the size from which a file of user data is compressed.
	packAt = 8 << 10
	// userDataLimit is the least limit of user data among clouds, in bytes.
	userDataLimit = 16 << 10
	// libPath is where the shell functions lie on the machine.
	libPath = "/var/lib/berth/node/render.sh"
)

// cloudConfig has the keys of #cloud-config that we write, in the order in which
// cloud-init takes them.
type cloudConfig struct {
	BootCmd    []string    `yaml:"bootcmd,omitempty"`
	Users      []any       `yaml:"users,omitempty"`
	Update     bool        `yaml:"package_update,omitempty"`
	Packages   []any       `yaml:"packages,omitempty"`
	WriteFiles []cloudFile `yaml:"write_files"`
	RunCmd     []string    `yaml:"runcmd"`
}

type cloudFile struct {
	Path        string `yaml:"path"`
	Permissions string `yaml:"permissions"`
	Owner       string `yaml:"owner"`
	Encoding    string `yaml:"encoding,omitempty"`
	// Defer makes cloud-init write the file after packages and users, as in the graph.
	Defer   bool   `yaml:"defer"`
	Content string `yaml:"content"`
}

type cloudUser struct {
	Name         string `yaml:"name"`
	UID          *int   `yaml:"uid,omitempty"`
	PrimaryGroup string `yaml:"primary_group,omitempty"`
	Groups       string `yaml:"groups,omitempty"`
	Home         string `yaml:"homedir,omitempty"`
	Shell        string `yaml:"shell,omitempty"`
	System       bool   `yaml:"system,omitempty"`
	LockPasswd   bool   `yaml:"lock_passwd"`
	NoCreateHome bool   `yaml:"no_create_home"`
}

// CloudInit is user data for cloud-init 21.1 or newer.
func CloudInit(in Input) (Output, error) {
	p, err := take(in)
	if err != nil {
		return Output{}, err
	}
	if in.Distro.Family == "flatcar" {
		p.refuse("cloud-init", "%s reads Ignition; use --target ignition", in.Distro.ID)
	}
	sh := shell{parts: p, bare: true}
	config := cloudConfig{
		WriteFiles: []cloudFile{{Path: libPath, Permissions: "0700", Owner: "root:root", Defer: true, Content: lib}},
		// cloud-init makes one script of the strings.
		RunCmd: []string{"set -eu", ". " + libPath},
	}
	if in.Distro.Manager == "apt" {
		config.hold(p.tasks)
	}
	config.RunCmd = append(config.RunCmd, p.machineWords())
	for _, task := range p.tasks {
		config.add(p, task)
		if step := sh.step(task); step != "" {
			config.RunCmd = append(config.RunCmd, step)
		}
	}
	config.RunCmd = append(config.RunCmd, "finish")
	for i := range config.WriteFiles {
		if err := config.WriteFiles[i].pack(); err != nil {
			return Output{}, err
		}
	}
	var text bytes.Buffer
	text.WriteString("#cloud-config\n" + p.head())
	encoder := yaml.NewEncoder(&text)
	encoder.SetIndent(2)
	if err := encoder.Encode(config); err != nil {
		return Output{}, fmt.Errorf("cannot write user data: %w", err)
	}
	if text.Len() > userDataLimit {
		p.leave("a limit", "these are %d bytes, and some clouds take %d; cloud-init reads user data compressed by gzip, too", text.Len(), userDataLimit)
	}
	return p.output(Output{Text: text.Bytes()})
}

// hold keeps Debian's packages from starting a runtime before its configuration is there:
// cloud-init installs them before it writes files. The commands that follow allow it again; if they
// never run, the policy ends with cloud-init. Somebody else's policy stays.
func (c *cloudConfig) hold(list []provision.Task) {
	var units []string
	for _, task := range list {
		if p, ok := task.(tasks.Packages); ok {
			units = append(units, p.Hold...)
		}
	}
	if len(units) == 0 {
		return
	}
	text := base64.StdEncoding.EncodeToString([]byte(startpolicy.Text(units, "[ ! -e /run/cloud-init/result.json ]")))
	c.BootCmd = append(c.BootCmd, "cloud-init-per instance berth-hold sh -c '[ -e "+startpolicy.File+" ] || { echo "+text+" | base64 -d > "+startpolicy.File+
		" && chmod 0755 "+startpolicy.File+"; }'")
	c.RunCmd = append(c.RunCmd, "free_units")
}

// add adds a task that cloud-init has a key for.
func (c *cloudConfig) add(p *parts, task provision.Task) {
	for _, f := range filesOf(task) {
		if file, ok := task.(tasks.File); ok && file.Once {
			p.leave(f.Path, "is written over if it is there: cloud-init has no way to leave it")
		}
		c.WriteFiles = append(c.WriteFiles, cloudFile{
			Path: f.Path, Permissions: octal(orMode(f.Mode, 0o644)), Owner: owner(f.Owner) + ":" + owner(f.Group), Defer: true, Content: f.Content,
		})
	}
	switch task := task.(type) {
	case tasks.Packages:
		c.Update = true
		for _, pkg := range task.Install {
			if pkg.Version != "" {
				c.Packages = append(c.Packages, []string{pkg.Name, pkg.Version})
			} else {
				c.Packages = append(c.Packages, pkg.Name)
			}
		}
	case tasks.Group:
		// cloud-init's groups have no numbers.
		add := strings.Replace(account(task), "group "+quote(task.Name), "groupadd", 1) + " " + quote(task.Name)
		c.BootCmd = append(c.BootCmd, "getent group "+quote(task.Name)+" >/dev/null || "+add)
	case tasks.User:
		if len(c.Users) == 0 {
			c.Users = append(c.Users, "default") // the image's own user stays
		}
		c.Users = append(c.Users, newCloudUser(p, task))
	}
}

func newCloudUser(p *parts, u tasks.User) cloudUser {
	user := cloudUser{Name: u.Name, Groups: strings.Join(u.Groups, ", "), Home: u.Home, Shell: u.Shell, System: u.System, LockPasswd: true, NoCreateHome: true}
	if u.UID >= 0 {
		user.UID = &u.UID
	}
	for _, task := range p.tasks {
		if g, ok := task.(tasks.Group); ok && g.GID >= 0 && g.GID == u.GID {
			user.PrimaryGroup = g.Name
		}
	}
	return user
}

// pack compresses large files, and encodes binary files.
func (f *cloudFile) pack() error {
	switch {
	case len(f.Content) >= packAt:
		packed, err := zipped(f.Content)
		if err != nil {
			return err
		}
		f.Encoding, f.Content = "gz+b64", base64.StdEncoding.EncodeToString(packed)
	case !isPlain(f.Content) && !isPlain(f.Content+"\n"):
		f.Encoding, f.Content = "b64", base64.StdEncoding.EncodeToString([]byte(f.Content))
	}
	return nil
}

func zipped(content string) ([]byte, error) {
	var packed bytes.Buffer
	w, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return nil, fmt.Errorf("cannot compress: %w", err)
	}
	if _, err := w.Write([]byte(content)); err != nil {
		return nil, fmt.Errorf("cannot compress: %w", err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("cannot compress: %w", err)
	}
	return packed.Bytes(), nil
}
