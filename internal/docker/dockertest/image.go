package dockertest

import (
	"bytes"
	"context"
	"io"
	"strconv"
	"strings"
	"testing"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/docker/api"
	"github.com/berthrun/berth/internal/engine/enginetest"
	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/require"
)

// Image is an image of busybox that an engine has.
type Image struct {
	// Name is its tag, ID the engine's id of it ("sha256:...").
	Name, ID string
	// Config is its configuration.
	Config imagespec.ImageConfig
	// Programs are what enginetest.Run needs of it.
	Programs enginetest.Programs
}

// ImageName is the tag of the image that LoadImage loads.
const ImageName = "berth.test/busybox:1"

// LoadImage loads an image made of the host's busybox. Its user app has uid 1000, gid 1001 and
// is in the group staff (50).
func LoadImage(t testing.TB, d *Daemon) *Image {
	t.Helper()
	var archive bytes.Buffer
	must(t, imagetest.Archive(&archive, busybox(t)))
	client, err := api.New(api.Options{Endpoint: d.Endpoint})
	must(t, err)
	defer client.Close()
	ctx, stop := context.WithTimeout(context.Background(), require.Patience(patience))
	defer stop()
	answer, err := client.ImageLoad(ctx, &archive)
	must(t, err)
	defer answer.Close()
	text, err := io.ReadAll(answer)
	must(t, err)
	found, err := client.ImageInspect(ctx, ImageName)
	if err != nil {
		t.Fatalf("the engine has not loaded the image: %v\n%s", err, text)
	}
	return &Image{
		Name: ImageName, ID: found.ID, Config: imagespec.ImageConfig{Env: []string{"PATH=/bin"}},
		Programs: programs(),
	}
}

func busybox(t testing.TB) imagetest.Spec {
	t.Helper()
	files := imagetest.Layer{
		{Path: "bin/busybox", Source: require.Binary(t, "busybox"), Mode: 0o755},
		{Path: "etc/passwd", Content: []byte("root:x:0:0::/root:/bin/sh\napp:x:1000:1001::/home/app:/bin/sh\n")},
		{Path: "etc/group", Content: []byte("root:x:0:\nstaff:x:50:app\n")},
		{Path: "home/app", Dir: true, UID: 1000, GID: 1001},
		{Path: "root", Dir: true, Mode: 0o700},
		{Path: "tmp", Dir: true, Mode: 0o1777},
	}
	const applets = "sh cat chmod cp cut dd df echo env false find grep head hostname id ip kill ls mkdir mknod mount " +
		"nc printf ps pwd readlink rm sed seq sleep sort stat stty sysctl tail test touch true tty umount uname wc yes"
	for applet := range strings.FieldsSeq(applets) {
		files = append(files, imagetest.File{Path: "bin/" + applet, Symlink: "busybox"})
	}
	return imagetest.Spec{Name: ImageName, Files: files, Env: []string{"PATH=/bin"}, Cmd: []string{"sh"}}
}

func programs() enginetest.Programs {
	shell := func(script string) []string { return []string{"sh", "-c", script} }
	return enginetest.Programs{
		Exit:     func(code int) []string { return shell("exit " + strconv.Itoa(code)) },
		Sleep:    shell("trap 'exit 143' TERM; while :; do sleep 0.1; done"),
		Stubborn: shell("trap '' TERM; while :; do sleep 0.1; done"),
		Missing:  []string{"/no/such/program"},
		Echo:     func(text string) []string { return []string{"echo", text} },
		Cat:      []string{"cat"},
	}
}
