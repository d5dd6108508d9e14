package kubeconfig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/berthrun/berth/internal/errs"
)

const admin = `apiVersion: v1
kind: Config
clusters:
- name: dev
  cluster: {server: "https://dev-control-plane:6443", certificate-authority-data: Y2E=}
users:
- name: kubernetes-admin
  user: {client-certificate-data: Y2VydA==, client-key-data: a2V5}
contexts:
- name: kubernetes-admin@dev
  context: {cluster: dev, user: kubernetes-admin}
current-context: kubernetes-admin@dev
`

// foreign is a user's file with fields that berth does not know.
const foreign = `apiVersion: v1
kind: Config
clusters:
- name: prod
  cluster: {server: "https://prod.example", certificate-authority: certs/ca.pem, proxy-url: "http://p.example"}
users:
- name: me
  user:
    exec: {apiVersion: client.authentication.k8s.io/v1, command: login, args: [a], interactiveMode: Never}
contexts:
- name: prod
  context: {cluster: prod, user: me, namespace: web, extensions: [{name: x, extension: {y: z}}]}
- name: mine
  context: {cluster: berth-dev, user: berth-dev, namespace: mine}
current-context: prod
`

func entry(t *testing.T, name, server string) *api.Config {
	t.Helper()
	config, err := FromAdmin([]byte(admin), name, server)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

func put(t *testing.T, file, text string) string {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
	return file
}

// names lists a file's entries: clusters, users, contexts, and the current one.
func names(t *testing.T, file string) string {
	t.Helper()
	config, err := clientcmd.LoadFromFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%s | %s | %s | %s", sorted(config.Clusters), sorted(config.AuthInfos), sorted(config.Contexts), config.CurrentContext)
}

func sorted[V any](entries map[string]V) string {
	text := fmt.Sprintf("%v", mapKeys(entries))
	return strings.Trim(strings.TrimPrefix(text, "map"), "[]")
}

// mapKeys returns the keys as a map, because fmt sorts maps.
func mapKeys[V any](entries map[string]V) map[string]struct{} {
	keys := map[string]struct{}{}
	for key := range entries {
		keys[key] = struct{}{}
	}
	return keys
}

func noLocks(t *testing.T, dir string) {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(dir, "*.lock"))
	if err != nil || len(left) > 0 {
		t.Errorf("locks are left: %v %v", left, err)
	}
	if temps, _ := filepath.Glob(filepath.Join(dir, ".*.*")); len(temps) > 0 {
		t.Errorf("files are left: %v", temps)
	}
}

func TestFromAdmin(t *testing.T) {
	for server, want := range map[string]string{"": "https://dev-control-plane:6443", "https://127.0.0.1:1": "https://127.0.0.1:1"} {
		config := entry(t, "berth-dev", server)
		if config.Clusters["berth-dev"].Server != want || config.Contexts["berth-dev"].Cluster != "berth-dev" ||
			config.Contexts["berth-dev"].AuthInfo != "berth-dev" || string(config.AuthInfos["berth-dev"].ClientKeyData) != "key" || config.CurrentContext != "berth-dev" {
			t.Errorf("%+v", config)
		}
		text, err := Render(config)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := clientcmd.Load(text); err != nil || !strings.Contains(string(text), "server: "+want) {
			t.Errorf("%v\n%s", err, text)
		}
	}
	for text, want := range map[string]string{
		"{": "cannot read", "": "0 clusters, 0 users and 0 contexts",
		strings.Replace(admin, "contexts:\n", "contexts:\n- {name: other, context: {cluster: dev}}\n", 1): "1 clusters, 1 users and 2 contexts",
	} {
		if _, err := FromAdmin([]byte(text), "a", ""); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %s", text, err, want)
		}
	}
}

func TestServer(t *testing.T) {
	for address, want := range map[string]string{
		"127.0.0.1": "https://127.0.0.1:6443", "0.0.0.0": "https://127.0.0.1:6443", "::": "https://[::1]:6443",
		"::1": "https://[::1]:6443", "192.0.2.1": "https://192.0.2.1:6443", "vm.example": "https://vm.example:6443",
	} {
		if got := Server(address, 6443); got != want {
			t.Errorf("%s: %s, want %s", address, got, want)
		}
	}
}

func TestLocate(t *testing.T) {
	for _, c := range []struct{ explicit, list, home, want string }{
		{"x", "a:b", "/h", "x"},
		{"", "a::b:a", "/h", "a b"},
		{"", "", "/h", "/h/.kube/config"},
		{"", ":", "/h", "/h/.kube/config"},
	} {
		files, err := Locate(c.explicit, func(name string) string { return map[string]string{"KUBECONFIG": c.list, "HOME": c.home}[name] })
		if err != nil || strings.Join(files, " ") != c.want {
			t.Errorf("%+v: %v %v", c, files, err)
		}
	}
	// Without HOME, the user's home directory is used if there is one.
	files, err := Locate("", func(string) string { return "" })
	if me, unknown := user.Current(); unknown == nil && me.HomeDir != "" {
		if err != nil || files[0] != filepath.Join(me.HomeDir, ".kube", "config") {
			t.Errorf("%v, %v", files, err)
		}
	} else if !errors.Is(err, errs.Invalid) {
		t.Errorf("%v", err)
	}
}

// TestMergeAndRemove: Merge keeps the other entries. After Remove the file is as before, byte for
// byte.
func TestMergeAndRemove(t *testing.T) {
	dir := t.TempDir()
	file := put(t, filepath.Join(dir, "config"), foreign)
	files := Files{file}
	// kubectl's own form of the file, to compare with.
	config, err := clientcmd.LoadFromFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, server := range []string{"https://127.0.0.1:1", "https://127.0.0.1:2"} { // twice: the second replaces
		where, err := files.Merge(t.Context(), entry(t, "berth-dev", server))
		if err != nil || where != file {
			t.Fatalf("%s %v", where, err)
		}
	}
	if got, want := names(t, file), "berth-dev:{} prod:{} | berth-dev:{} me:{} | berth-dev:{} mine:{} prod:{} | berth-dev"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if text, _ := os.ReadFile(file); !strings.Contains(string(text), "https://127.0.0.1:2") || strings.Contains(string(text), "127.0.0.1:1") {
		t.Errorf("%s", text)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	for range 2 { // the second Remove has nothing to do
		if err := files.Remove(t.Context(), "berth-dev"); err != nil {
			t.Fatal(err)
		}
	}
	after, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Replace(string(before), "current-context: prod", `current-context: ""`, 1)
	if diff := cmp.Diff(want, string(after)); diff != "" {
		t.Error(diff)
	}
	noLocks(t, dir)
}

// TestRemoveKeepsTheCurrentContext: Remove keeps the current context of another cluster.
func TestRemoveKeepsTheCurrentContext(t *testing.T) {
	file := put(t, filepath.Join(t.TempDir(), "config"), foreign)
	if _, err := (Files{file}).Merge(t.Context(), entry(t, "berth-dev", "")); err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.LoadFromFile(file)
	if err != nil {
		t.Fatal(err)
	}
	config.CurrentContext = "prod"
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	if err := (Files{file}).Remove(t.Context(), "berth-dev"); err != nil {
		t.Fatal(err)
	}
	if got, want := names(t, file), "prod:{} | me:{} | mine:{} prod:{} | prod"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

// TestUpdate: Update changes the entries that exist, and nothing else.
func TestUpdate(t *testing.T) {
	const internal = "https://dev-control-plane:6443"
	dir := t.TempDir()
	files := Files{put(t, filepath.Join(dir, "a"), foreign), put(t, filepath.Join(dir, "b"), "")}
	if err := files.Update(t.Context(), entry(t, "berth-dev", "https://127.0.0.1:1"), internal); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(files[0]); err != nil || string(text) != foreign {
		t.Errorf("a file without the cluster was changed: %v\n%s", err, text)
	}
	if _, err := (Files{files[1]}).Merge(t.Context(), entry(t, "berth-dev", "https://127.0.0.1:1")); err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.LoadFromFile(files[1])
	if err != nil {
		t.Fatal(err)
	}
	config.CurrentContext, config.Contexts["berth-dev"].Namespace, config.AuthInfos["berth-dev"].ClientKeyData = "other", "web", []byte("old")
	if err := clientcmd.WriteToFile(*config, files[1]); err != nil {
		t.Fatal(err)
	}
	if err := files.Update(t.Context(), entry(t, "berth-dev", "https://127.0.0.1:2"), internal); err != nil {
		t.Fatal(err)
	}
	if config, err = clientcmd.LoadFromFile(files[1]); err != nil {
		t.Fatal(err)
	}
	if config.Clusters["berth-dev"].Server != "https://127.0.0.1:2" || string(config.AuthInfos["berth-dev"].ClientKeyData) != "key" ||
		config.CurrentContext != "other" || config.Contexts["berth-dev"].Namespace != "web" {
		t.Errorf("%+v", config)
	}
	noLocks(t, dir)
	// Nothing changes any more: no file is locked or written.
	put(t, files[1]+".lock", "")
	if err := files.Update(t.Context(), entry(t, "berth-dev", "https://127.0.0.1:2"), internal); err != nil {
		t.Error(err)
	}
}

// TestUpdateKeepsTheUsers: an entry stays valid, and keeps what its user has put there.
func TestUpdateKeepsTheUsers(t *testing.T) {
	const internal = "https://dev-control-plane:6443"
	files := Files{put(t, filepath.Join(t.TempDir(), "config"), "")}
	if _, err := files.Merge(t.Context(), entry(t, "berth-dev", internal)); err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.LoadFromFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	config.Clusters["berth-dev"].InsecureSkipTLSVerify, config.Clusters["berth-dev"].CertificateAuthorityData = true, nil
	config.AuthInfos["berth-dev"] = &api.AuthInfo{Token: "secret"}
	if err := clientcmd.WriteToFile(*config, files[0]); err != nil {
		t.Fatal(err)
	}
	if err := files.Update(t.Context(), entry(t, "berth-dev", "https://127.0.0.1:2"), internal); err != nil {
		t.Fatal(err)
	}
	if config, err = clientcmd.LoadFromFile(files[0]); err != nil {
		t.Fatal(err)
	}
	if err := clientcmd.ConfirmUsable(*config, "berth-dev"); err != nil {
		t.Error(err)
	}
	cluster, user := config.Clusters["berth-dev"], config.AuthInfos["berth-dev"]
	if cluster.Server != internal || !cluster.InsecureSkipTLSVerify || user.Token != "secret" || len(user.ClientCertificateData) > 0 {
		t.Errorf("%+v %+v", cluster, user)
	}
}

// TestSeveralFiles: KUBECONFIG with a list.
func TestSeveralFiles(t *testing.T) {
	const head = "apiVersion: v1\nkind: Config\n"
	stale := head + "clusters: [{name: dd, cluster: {server: https://stale}}]\ncontexts: [{name: dd, context: {cluster: dd, user: dd}}]\n"
	for name, c := range map[string]struct {
		in   [3]string // "" if the file does not exist
		want [3]string
	}{
		"none exists":      {[3]string{}, [3]string{2: "dd:{} | dd:{} | dd:{} | dd"}},
		"the first exists": {[3]string{"", head, head + "current-context: other\n"}, [3]string{"", "dd:{} | dd:{} | dd:{} | dd", " |  |  | other"}},
		"it is in another": {[3]string{head + "current-context: other\n", stale, ""}, [3]string{" |  |  | dd", "dd:{} | dd:{} | dd:{} | ", ""}},
		"it is in two":     {[3]string{stale, stale + "current-context: dd\n", ""}, [3]string{"dd:{} | dd:{} | dd:{} | dd", " |  |  | ", ""}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			var files Files
			for i, text := range c.in {
				file := filepath.Join(dir, fmt.Sprintf("sub%d", i), "config")
				files = append(files, file)
				if text != "" {
					if err := os.Mkdir(filepath.Dir(file), 0o755); err != nil {
						t.Fatal(err)
					}
					put(t, file, text)
				}
			}
			if _, err := files.Merge(t.Context(), entry(t, "dd", "https://new")); err != nil {
				t.Fatal(err)
			}
			for i, want := range c.want {
				_, err := os.Stat(files[i])
				switch {
				case want == "" && !errors.Is(err, os.ErrNotExist):
					t.Errorf("file %d was made: %v", i, err)
				case want != "":
					if got := names(t, files[i]); got != want {
						t.Errorf("file %d: %s; want %s", i, got, want)
					}
				}
			}
			merged, err := (&clientcmd.ClientConfigLoadingRules{Precedence: files}).Load()
			if err != nil || merged.CurrentContext != "dd" || merged.Clusters["dd"].Server != "https://new" {
				t.Errorf("kubectl sees %+v: %v", merged, err)
			}
			if err := files.Remove(t.Context(), "dd"); err != nil {
				t.Fatal(err)
			}
			merged, err = (&clientcmd.ClientConfigLoadingRules{Precedence: files}).Load()
			if err != nil || holds(merged, "dd") {
				t.Errorf("kubectl still sees %+v: %v", merged, err)
			}
			for i := range files {
				noLocks(t, filepath.Dir(files[i]))
			}
		})
	}
}

// TestManyAtOnce: clusters are created and deleted at the same time. No entry is lost.
func TestManyAtOnce(t *testing.T) {
	dir := t.TempDir()
	files := Files{put(t, filepath.Join(dir, "a"), foreign), filepath.Join(dir, "b")}
	var group sync.WaitGroup
	for i := range 12 {
		group.Go(func() {
			name := fmt.Sprintf("berth-%d", i)
			config, err := FromAdmin([]byte(admin), name, "")
			if err == nil {
				_, err = files.Merge(context.WithoutCancel(t.Context()), config)
			}
			if err == nil && i%2 == 0 {
				err = files.Remove(context.WithoutCancel(t.Context()), name)
			}
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	group.Wait()
	config, err := clientcmd.LoadFromFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	if got, want := sorted(config.Clusters), "berth-1:{} berth-11:{} berth-3:{} berth-5:{} berth-7:{} berth-9:{} prod:{}"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	noLocks(t, dir)
}

func TestLocks(t *testing.T) {
	dir := t.TempDir()
	file := put(t, filepath.Join(dir, "config"), foreign)
	put(t, file+".lock", "")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("interrupted"))
	if _, err := (Files{file}).Merge(ctx, entry(t, "n", "")); err == nil || !strings.Contains(err.Error(), "cannot lock kubeconfig "+file+": interrupted") {
		t.Errorf("%v", err)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != foreign {
		t.Errorf("the file was changed without its lock: %v", err)
	}
	if _, err := os.Stat(file + ".lock"); err != nil {
		t.Errorf("the lock of another was taken away: %v", err)
	}
	// berth does not lock a file that it does not change, so the lock of another process has no
	// effect.
	other := put(t, filepath.Join(dir, "other"), "")
	if where, err := (Files{other, file}).Merge(t.Context(), entry(t, "n", "")); err != nil || where != other {
		t.Errorf("%s %v", where, err)
	}
	// A waiting process gets the lock once it is free.
	done := make(chan error)
	go func() {
		_, err := (Files{file}).Merge(t.Context(), &api.Config{
			CurrentContext: "w", Clusters: map[string]*api.Cluster{"w": {}}, AuthInfos: map[string]*api.AuthInfo{"w": {}}, Contexts: map[string]*api.Context{"w": {}},
		})
		done <- err
	}()
	if err := os.Remove(file + ".lock"); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	noLocks(t, dir)
}

func TestLinksAndBrokenFiles(t *testing.T) {
	dir := t.TempDir()
	real := put(t, filepath.Join(dir, "real"), foreign)
	link := filepath.Join(dir, "link")
	if err := os.Symlink("real", link); err != nil {
		t.Fatal(err)
	}
	if _, err := (Files{link}).Merge(t.Context(), entry(t, "n", "")); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is no link any more: %v", err)
	}
	if got := names(t, real); !strings.Contains(got, "n:{}") {
		t.Errorf("%s", got)
	}
	// A link to a missing file: Merge creates the file.
	ahead := filepath.Join(dir, "ahead")
	if err := os.Symlink("absent", ahead); err != nil {
		t.Fatal(err)
	}
	if _, err := (Files{ahead}).Merge(t.Context(), entry(t, "n", "")); err != nil {
		t.Fatal(err)
	}
	if to, err := os.Readlink(ahead); err != nil || to != "absent" || !strings.Contains(names(t, filepath.Join(dir, "absent")), "n:{}") {
		t.Errorf("%q, %v", to, err)
	}
	broken := put(t, filepath.Join(dir, "broken"), "a: [")
	for _, files := range []Files{{broken}, {real, broken}, {dir}} {
		_, err := files.Merge(t.Context(), entry(t, "m", ""))
		if err == nil || !strings.Contains(err.Error(), "cannot read kubeconfig "+files[len(files)-1]) {
			t.Errorf("%v: %v", files, err)
		}
		if err := files.Remove(t.Context(), "n"); err == nil {
			t.Errorf("%v: removed", files)
		}
		if err := files.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "cannot read kubeconfig "+files[len(files)-1]) {
			t.Errorf("%v: %v", files, err)
		}
	}
	if text, _ := os.ReadFile(broken); string(text) != "a: [" {
		t.Errorf("a file that cannot be read was changed: %s", text)
	}
	noLocks(t, dir)
}

// TestCheck: Check reports that Merge would fail, and creates nothing.
func TestCheck(t *testing.T) {
	dir := t.TempDir()
	if err := (Files{filepath.Join(dir, "a", "b", "config")}).Check(t.Context()); err != nil {
		t.Error(err)
	}
	if made, err := os.ReadDir(dir); err != nil || len(made) > 0 {
		t.Errorf("made: %v, %v", made, err)
	}
	file := put(t, filepath.Join(dir, "config"), foreign)
	if err := (Files{file}).Check(t.Context()); err != nil {
		t.Error(err)
	}
	noLocks(t, dir)
	if err := (Files{filepath.Join(file, "below", "a", "file")}).Check(t.Context()); err == nil || !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("%v", err)
	}
	put(t, file+".lock", "")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("interrupted"))
	if err := (Files{file}).Check(ctx); err == nil || !strings.Contains(err.Error(), "cannot lock kubeconfig "+file) {
		t.Errorf("%v", err)
	}
}
