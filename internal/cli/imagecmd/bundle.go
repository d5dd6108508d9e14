package imagecmd

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/cli/imagecmd/bill"
	"github.com/berthrun/berth/internal/cli/interrupt"
	"github.com/berthrun/berth/internal/cli/podrun"
	"github.com/berthrun/berth/internal/cli/progress"
	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/version"
)

// maxList bounds the list of images, in bytes.
const maxList = 4 << 20

// bundling is one run of `berth image bundle`.
type bundling struct {
	list, output, handler string
	again                 bool
	auth                  berthapi.Auth

	cmd  *cobra.Command
	conn *criclient.Conn
}

func (c *commands) newBundle() *cobra.Command {
	var b bundling
	var user string
	var passwordStdin bool
	cmd := &cobra.Command{
		Use:   "bundle -o FILE [IMAGE...]",
		Short: "Pull the images of a list, and write them to one archive with a bill of materials",
		Long: "bundle pulls the images that the node does not have, and writes all of them to one archive, as save does: for\n" +
			"import, image.import_dirs, docker, podman and ctr. A list has one reference a line, and comments after #.\n" +
			"Beside NAME.tar it writes NAME.spdx.json, a bill of materials (SPDX 2.3) with the images, their layers and the\n" +
			"packages that their databases of dpkg and apk list, and NAME.lock, the list with the digests of this node's\n" +
			"platform. With this list another run writes the same bytes. Only berth supports this.",
		Example: "  berth image bundle -o images.tar registry.k8s.io/pause:3.10\n  berth image bundle -f images.txt -o images.tar\n" +
			"  berth image bundle -f images.lock -o images.tar",
		RunE: func(cmd *cobra.Command, args []string) error {
			if b.list == "-" && passwordStdin {
				return fmt.Errorf("cannot read both the list and the password from stdin: %w", errs.Invalid)
			}
			wanted, err := b.read(cmd.InOrStdin(), args)
			if err != nil {
				return err
			}
			if b.auth, err = credentials(cmd.InOrStdin(), user, passwordStdin); err != nil {
				return err
			}
			return c.endpoint.Use(cmd, func(ctx context.Context, conn *criclient.Conn) error {
				b.cmd, b.conn = cmd, conn
				return interrupt.Run(ctx, func(string) {}, func(ctx context.Context) error { return b.run(ctx, wanted) })
			})
		},
	}
	cmd.Flags().StringVarP(&b.list, "file", "f", "", "file with a list of images; - is stdin")
	registerHandler(cmd, &b.handler)
	cmd.Flags().StringVarP(&b.output, "output", "o", "", "archive to write")
	cmd.Flags().BoolVar(&b.again, "pull", false, "pull images that the node has, too: their tags may have moved")
	cmd.Flags().StringVarP(&user, "username", "u", "", "user name for the registries")
	cmd.Flags().BoolVar(&passwordStdin, "password-stdin", false, "read the password from stdin")
	cmd.MarkFlagsRequiredTogether("username", "password-stdin")
	if err := cmd.MarkFlagRequired("output"); err != nil {
		panic(err) // the flag is defined above
	}
	return cmd
}

// wantedImage is an image of a list: its reference by tag, by digest, or both.
type wantedImage struct{ tag, digest string }

// read returns the images of the list and the arguments, each once.
func (b *bundling) read(stdin io.Reader, args []string) ([]wantedImage, error) {
	refs := slices.Clone(args)
	if b.list != "" {
		from := stdin
		if b.list != "-" {
			file, err := os.Open(b.list)
			if err != nil {
				return nil, fmt.Errorf("cannot read the list of images: %w", err)
			}
			defer file.Close()
			from = file
		}
		lines := bufio.NewScanner(io.LimitReader(from, maxList))
		for number := 1; lines.Scan(); number++ {
			line, _, _ := strings.Cut(lines.Text(), "#")
			fields := strings.Fields(line)
			if len(fields) > 1 {
				return nil, fmt.Errorf("%s:%d: %q: want one reference a line: %w", b.list, number, strings.TrimSpace(line), errs.Invalid)
			}
			refs = append(refs, fields...)
		}
		if err := lines.Err(); err != nil {
			return nil, fmt.Errorf("cannot read the list of images: %w", err)
		}
	}
	var all []wantedImage
	for _, ref := range refs {
		one, err := parseWanted(ref)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(all, one) {
			all = append(all, one)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("cannot bundle: no image is named; name some, or a list with -f: %w", errs.Invalid)
	}
	return all, nil
}

func parseWanted(ref string) (wantedImage, error) {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return wantedImage{}, fmt.Errorf("image reference %q: %w: %w", ref, err, errs.Invalid)
	}
	var w wantedImage
	by, digested := named.(reference.Digested)
	if digested {
		w.digest = reference.TrimNamed(named).Name() + "@" + by.Digest().String()
	}
	if tagged, ok := named.(reference.Tagged); ok {
		w.tag = reference.TrimNamed(named).Name() + ":" + tagged.Tag()
	} else if !digested {
		w.tag = reference.TagNameOnly(named).String()
	}
	return w, nil
}

// run pulls, and writes the archive and what is beside it. The archive gets its name last.
func (b *bundling) run(ctx context.Context, wanted []wantedImage) (err error) {
	if fi, err := os.Stat(b.output); err == nil && !fi.Mode().IsRegular() {
		return fmt.Errorf("cannot bundle: %s is not a regular file; name one, because berth reads the archive again to write its SBOM: %w", b.output, errs.Invalid)
	}
	var refs, expected []string
	var failed []error
	for _, w := range wanted {
		names, id, err := b.ensure(ctx, w)
		failed = append(failed, err)
		for _, name := range names {
			if !slices.Contains(expected, name) {
				expected = append(expected, name)
			}
		}
		if b.handler != "" { // a name is that of the image for the node's platform
			names = []string{id}
		}
		for _, ref := range names {
			if !slices.Contains(refs, ref) {
				refs = append(refs, ref)
			}
		}
	}
	if err := errors.Join(failed...); err != nil {
		return err
	}
	file, err := createOutput(b.output)
	if err != nil {
		return fmt.Errorf("cannot bundle: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, file.Discard())
		}
	}()
	sum := sha256.New()
	if err := b.conn.Berth.ExportImage(ctx, berthapi.ExportRequest{Refs: refs}, io.MultiWriter(file, sum)); err != nil {
		return fmt.Errorf("cannot bundle: %w", err)
	}
	images, err := bill.Read(file.File)
	if err != nil {
		return fmt.Errorf("cannot bundle: %w", err)
	}
	if err := lacks(images, expected); err != nil {
		return err
	}
	dgst := digest.NewDigest(digest.SHA256, sum)
	if err := b.writeBeside(images, dgst); err != nil {
		return err
	}
	if err := errors.Join(file.Sync(), file.Commit()); err != nil {
		return fmt.Errorf("cannot bundle: %w", err)
	}
	return b.report(images, dgst)
}

// ensure returns the names by which an image goes into the archive, and its id, after a pull if the node does not have it.
func (b *bundling) ensure(ctx context.Context, w wantedImage) (names []string, id string, err error) {
	ref := w.digest
	if ref == "" {
		ref = w.tag
	}
	img, err := b.status(ctx, ref)
	if err != nil {
		return nil, "", err
	}
	if img == nil || b.again {
		req := berthapi.PullRequest{Ref: ref, Auth: b.auth, Handler: b.handler}
		if _, err := podrun.Pull(ctx, b.conn, req, progress.New(b.cmd.ErrOrStderr(), ref)); err != nil {
			return nil, "", err
		}
		if img, err = b.status(ctx, ref); err != nil {
			return nil, "", err
		}
	}
	if w.tag != "" && w.digest != "" && !slices.Contains(img.GetRepoTags(), w.tag) {
		if err := b.conn.Berth.TagImage(ctx, berthapi.TagRequest{Image: img.GetId(), Names: []string{w.tag}}); err != nil {
			return nil, "", fmt.Errorf("cannot name %s: %w", w.digest, err)
		}
	}
	if b.handler != "" { // an archive of an id has its tags, and its digests only without a tag
		return []string{cmp.Or(w.tag, w.digest)}, img.GetId(), nil
	}
	names = slices.DeleteFunc([]string{w.tag, w.digest}, func(name string) bool { return name == "" })
	// Of the digests in this repository, that of the node's platform is the last.
	repository, _, _ := strings.Cut(ref, "@")
	if w.digest == "" {
		repository = ref[:strings.LastIndex(ref, ":")]
	}
	own := ""
	for _, name := range img.GetRepoDigests() {
		if of, _, _ := strings.Cut(name, "@"); of == repository {
			own = name
		}
	}
	if own != "" && !slices.Contains(names, own) {
		names = append(names, own)
	}
	return names, img.GetId(), nil
}

func (b *bundling) status(ctx context.Context, ref string) (*runtimeapi.Image, error) {
	resp, err := b.conn.Images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: ref, RuntimeHandler: b.handler}})
	return resp.GetImage(), err
}

// lacks returns an error if the archive lacks a name: the Docker Engine, say, writes none with digests.
func lacks(images []bill.Image, refs []string) error {
	var missing []string
	for _, ref := range refs {
		if !slices.ContainsFunc(images, func(img bill.Image) bool { return slices.Contains(img.Names, ref) }) {
			missing = append(missing, ref)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("cannot bundle: the daemon's archive lacks the names %s: %w", strings.Join(missing, ", "), errs.Unsupported)
	}
	return nil
}

// writeBeside writes the bill of materials and the lock.
func (b *bundling) writeBeside(images []bill.Image, archive digest.Digest) error {
	name := filepath.Base(b.output)
	var document strings.Builder
	encoder := json.NewEncoder(&document)
	encoder.SetIndent("", " ")
	encoder.SetEscapeHTML(false) // package URLs have &
	if err := encoder.Encode(bill.Document(name, archive, "berth-"+version.Version, images)); err != nil {
		return err
	}
	lock := "# the images of " + name + " (" + archive.String() + ")\n" + strings.Join(locked(images), "\n") + "\n"
	for suffix, text := range map[string]string{".spdx.json": document.String(), ".lock": lock} {
		if err := replace(b.beside(suffix), text); err != nil {
			return fmt.Errorf("cannot bundle: %w", err)
		}
	}
	return nil
}

// beside is the name of a file beside the archive.
func (b *bundling) beside(suffix string) string { return strings.TrimSuffix(b.output, ".tar") + suffix }

func replace(name, text string) error {
	file, err := createOutput(name)
	if err != nil {
		return err
	}
	if _, err := file.WriteString(text); err != nil {
		return errors.Join(err, file.Discard())
	}
	return file.Commit()
}

// locked are the references of all images, by tag and digest of the manifest. A name with a digest that no tag has stands
// for itself.
func locked(images []bill.Image) []string {
	var all []string
	for i := range images {
		img := &images[i]
		covered := map[string]bool{}
		for _, name := range img.Names {
			if !strings.Contains(name, "@") {
				all = append(all, name+"@"+img.Digest.String())
				covered[name[:strings.LastIndex(name, ":")]+"@"+img.Digest.String()] = true
			}
		}
		for _, name := range img.Names {
			if strings.Contains(name, "@") && !covered[name] {
				all = append(all, name)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func (b *bundling) report(images []bill.Image, archive digest.Digest) error {
	w := b.cmd.OutOrStdout()
	for i := range images {
		img := &images[i]
		fmt.Fprintf(w, "%s  %s  packages: %d  %s\n", img.Digest, img.Kind(), len(img.Packages), strings.Join(img.Names, " "))
		if img.Fault != nil {
			fmt.Fprintf(b.cmd.ErrOrStderr(), "warning: the bill of materials lacks the packages of %s: %s\n", img.Digest, errs.Message(img.Fault))
		}
	}
	info, err := os.Stat(b.output)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "wrote %s (%s, %s), %s and %s\n", b.output, archive, show.Size(uint64(info.Size())), b.beside(".spdx.json"), b.beside(".lock"))
	return err
}
