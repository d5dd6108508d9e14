//go:build integration && e2e

package integration

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/berthrun/berth/test/harness"
	"github.com/berthrun/berth/test/harness/browser"
)

// TestNodePageInABrowser: a person looks at the page in Chromium, light and dark, on a screen and on a phone, with keys
// alone. BERTH_TEST_OUT names a directory for pictures. Names and log lines with markup stay text, and nothing of the page
// breaks its policy.
func TestNodePageInABrowser(t *testing.T) {
	b := harness.Start(t, harness.Options{Config: "[page]\nlisten = '" + pageListen + "'\n"})
	const hostile = `<img src=x onerror="document.title='owned'">`
	for _, name := range []string{"web", "database-0", "queue"} {
		b.RunPod(name, "i=0; while true; do i=$((i+1)); echo \"line $i of "+name+"\" '"+hostile+"'; sleep 0.2; done")
	}
	config := b.Sandbox("evil")
	config.Metadata.Name = "<b>owned<b>"
	b.RunSandbox(config)

	address := strings.TrimSpace(b.MustCLI("page"))
	x := browser.Start(t, b.InHost, dialInHost(b))
	picture := func(name string) {
		if dir := os.Getenv("BERTH_TEST_OUT"); dir != "" {
			x.Picture(filepath.Join(dir, "page-"+name+".png"))
		}
	}
	x.Scheme("light")
	x.Size(1280, 900, false)
	x.Go("http://" + pageListen + "/")
	x.Await("the question for the token", `!document.getElementById("ask").hidden && document.activeElement.id === "token"`)
	picture("token")
	// The address in the same tab: only its part behind # changes.
	_, token, _ := strings.Cut(address, "#")
	x.Eval("location.hash = " + strconv.Quote(token))
	x.Await("the pods", `document.querySelectorAll("#pods-table tr.container").length === 3 && document.getElementById("status").className === "good"`)
	x.Await("figures of CPU", `[...document.querySelectorAll("#pods-table tr.pod")].some((r) => /[0-9] %/.test(r.innerText))`)
	x.Await("events, images and start times", `document.querySelectorAll("#events-table tbody tr").length > 3 && document.querySelectorAll("#images-table tbody tr").length > 0 && document.querySelectorAll("#plots svg").length > 3`)
	if got := x.Eval("location.href"); strings.Contains(got, "token") {
		t.Errorf("the address still has the token: %s", got)
	}
	if x.Eval(`document.querySelectorAll("#doctor-table tbody tr").length`) != "0" {
		t.Error("the machine was examined, though nobody has asked for it")
	}
	x.Eval(`document.getElementById("examine").click()`)
	x.Await("the findings of doctor", `document.querySelectorAll("#doctor-table tbody tr").length > 20 && !document.getElementById("examine").disabled && /^examined at/.test(document.getElementById("doctor-status").textContent)`)
	for _, scheme := range []string{"light", "dark"} {
		x.Scheme(scheme)
		x.Size(1280, 900, false)
		picture(scheme)
		x.Size(1280, 3000, false)
		picture(scheme + "-all")
		x.Size(390, 844, true)
		if x.Eval("document.documentElement.scrollWidth <= 390") != "true" {
			t.Errorf("%s: on a phone the page is %s wide", scheme, x.Eval("document.documentElement.scrollWidth"))
		}
		picture(scheme + "-phone")
	}
	x.Scheme("light")
	x.Size(1280, 900, false)

	// By keys alone: to the first button of a log, and back.
	for tries := 0; x.Eval(`document.activeElement.matches("td button")`) != "true"; tries++ {
		if tries > 60 {
			t.Fatal("Tab does not reach the buttons of logs")
		}
		x.Key("Tab")
	}
	x.Key("Enter")
	x.Await("lines of the log that grow", `document.getElementById("log").open && document.getElementById("log-lines").childElementCount > (window.former ??= document.getElementById("log-lines").childElementCount || undefined)`)
	if x.Eval(`document.getElementById("log-lines").innerText.includes("<img src=x")`) != "true" {
		t.Error("the log does not show the line with markup")
	}
	picture("log")
	x.Key("Escape")
	x.Await("the end of the log", `!document.getElementById("log").open`)
	x.Eval(`document.querySelector("[data-sort=name]").click(); document.getElementById("filter").value = "queue"; document.getElementById("filter").dispatchEvent(new Event("input"))`)
	x.Await("the filter", `document.querySelectorAll("#pods-table tbody tr").length === 2`)
	x.Eval(`document.getElementById("filter").value = "owned"; document.getElementById("filter").dispatchEvent(new Event("input"))`)
	x.Await("the pod with markup in its name", `document.querySelector("#pods-table tbody").innerText.includes("<b>owned<b>")`)
	if got := x.Eval("document.title"); !strings.HasPrefix(got, "berth - ") {
		t.Errorf("a name has become a script: the title is %q", got)
	}
	if faults := x.Faults(); len(faults) > 1 { // the first is the answer 401 before the token
		t.Errorf("the page reports %s", strings.Join(faults, "\n"))
	}

	b.KillDaemon()
	x.Await("the report that the daemon is away", `document.getElementById("status").className === "bad" && document.querySelectorAll("#pods-table tbody tr").length > 0`)
	picture("away")
	b.StartDaemon()
	x.Await("the return of the daemon", `document.getElementById("status").className === "good"`)
	x.Await("the parts after the return", `document.getElementById("events-status").textContent === "" && document.getElementById("doctor-status").textContent === "not examined so far"`)
}
