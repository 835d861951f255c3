package report

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/conformance"
)

// attack is text that runs if it becomes markup.
const attack = `</script><script>document.title="taken"</script><img src=x onerror='document.title="taken"'>`

// hostile is a report with attacks wherever a report has text that peers or programs choose.
func hostile(t *testing.T) *conformance.Report {
	t.Helper()
	rep := synthetic(t, t.TempDir())
	rep.Version, rep.Kernel, rep.Tshark, rep.Siw = attack, attack, attack, attack
	for i := range rep.Results {
		res := &rep.Results[i]
		res.Title, res.Why, res.Replay, res.Interface = attack, attack, attack, attack
		res.Capture = `javascript:document.title="taken"//.pcapng`
		res.CaptureAtPeer = res.Capture
		res.Log = append(res.Log, attack)
		res.Checks = append(res.Checks, conformance.Check{What: attack, Got: attack})
		res.Observations = append(res.Observations, conformance.Observation{Key: attack, Value: attack})
		res.Requirements = append(res.Requirements, attack)
		res.Witness = conformance.Witness{Asked: true, Why: attack}
		for k := range res.Ladder {
			res.Ladder[k] += attack
		}
		for k := range res.Messages {
			res.Messages[k].Kind, res.Messages[k].Fields = attack, append(res.Messages[k].Fields, attack+"="+attack)
		}
		for k := range res.Divergences {
			d := &res.Divergences[k]
			d.Reference, d.Got, d.Reason, d.Evidence, d.Kernels = attack, attack, attack, attack, attack
			d.Provider = attack
			if d.Entry != "" {
				d.Entry = attack
			}
		}
		if i%2 == 0 {
			res.Scenario = "send/" + attack
		}
	}
	for i := range rep.Requirements {
		c := &rep.Requirements[i]
		c.Text, c.Scenarios = attack, []string{attack}
		for _, s := range c.Providers {
			s.Scenarios, s.Entries = []string{attack}, []string{attack}
		}
	}
	return rep
}

// narrowestWindow is the least width that Chromium gives a window.
const narrowestWindow = 500

// narrow is a page that shows another in a frame of a width, and becomes that page once it is
// ready.
const narrow = `<body><iframe width="%d" height="900" src="%s"></iframe><script>
setInterval(() => {
  const e = document.querySelector("iframe")?.contentDocument?.documentElement;
  if (e && (e.dataset.shown || e.querySelector("#failed:not([hidden])"))) document.documentElement.replaceWith(document.adoptNode(e));
}, 20);
</script>`

// browse makes Chromium load a page at an address in it, in a window of a width, and returns what
// the page has become. It skips the test if Chromium is not installed, unless
// GOVS_REQUIRE_BROWSER is 1.
func browse(t *testing.T, page, route string, width int) string {
	t.Helper()
	browser, err := exec.LookPath("chromium")
	if err != nil {
		if os.Getenv("GOVS_REQUIRE_BROWSER") == "1" {
			t.Fatal("GOVS_REQUIRE_BROWSER=1, and chromium is not installed: ci/deps page adds it")
		}
		t.Skip("chromium is not installed: ci/deps page adds it")
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "index.html")
	testkit.OK(t, os.WriteFile(file, []byte(page), 0o644))
	address := "file://" + file + "#" + url.PathEscape(route)
	window := width
	if width < narrowestWindow {
		frame := filepath.Join(dir, "frame.html")
		testkit.OK(t, os.WriteFile(frame, fmt.Appendf(nil, narrow, width, address), 0o644))
		address, window = "file://"+frame, narrowestWindow
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, browser, "--headless", "--no-sandbox", "--disable-gpu",
		"--user-data-dir="+filepath.Join(dir, "user"), "--virtual-time-budget=5000",
		"--allow-file-access-from-files", // for narrow
		fmt.Sprintf("--window-size=%d,1000", window), "--dump-dom", address)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v", cmd, err)
	}
	return string(out)
}

// probe opens all that can be opened, and notes on the page the state that it finds then. The
// page's policy would not let it run.
const probe = `<script>
const wait = setInterval(() => {
  if (document.documentElement.dataset.ready !== "yes") return;
  clearInterval(wait);
  for (let n = -1, all = []; n < all.length;) {
    n = all.length;
    all = document.querySelectorAll("details");
    for (const d of all) open(d);
  }
  const wide = [...document.querySelectorAll("body *:not(.bar *, legend)")].filter((e) =>
    e.getBoundingClientRect().right > innerWidth + 1 ||
    e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).overflowX !== "visible").map((e) => e.tagName + "." + e.className);
  const dead = [...document.querySelectorAll('a[href^="#"]')].map((a) => decodeURIComponent(a.hash.slice(1)))
    .filter((name) => !byId(name) && !/^(area|showing)\//.test(name));
  const marked = markedWords(["  0.1 <-- Reply rev 2 IRD 4 ORD 3"],
	["  0.2 <-- Reply rev 2 C IRD 3 ORD 3 CRC ok 0x12345678"],
    ["IRD"], [{ reference: "4", got: "3" }]).map((s) => [...s].join("+")).join(" ");
  Object.assign(document.documentElement.dataset, {
    marked, width: innerWidth, dead: [...new Set(dead)].join(" "),
    wide: [...new Set(wide)].join(" ") || "none", shown: document.querySelector("output").textContent,
    details: document.querySelectorAll("details").length, title: document.title,
  });
}, 20);
</script>`

// probed is a page with the probe, and without the policy.
func probed(page string) string { return with(page, probe) }

// with is a page with a script, and without the policy.
func with(page, script string) string {
	page = strings.Replace(page, "Content-Security-Policy", "X-None", 1)
	return strings.Replace(page, "</body>", script+"</body>", 1)
}

func TestInBrowser(t *testing.T) {
	t.Parallel()
	rep := synthetic(t, t.TempDir())
	rep.Results[1].CaptureAtPeer = "queue-receive-empty.at-peer.pcapng"
	dom := browse(t, html(t, rep), "run/queue/receive-empty/engine/kernel", 1400)
	for _, want := range []string{
		`data-ready="yes"`, "5 of 5 scenarios",
		`href="queue-receive-empty.engine-engine.pcapng"`,
		`Those at the other host, with the times of its clock: <a href="queue-receive-empty.at-peer.pcapng">`,
		"Untagged: a buffer exists for QN/MSN", "2 of 2 checks hold", "tshark agrees about 5 frames",
		`<mark>siw</mark>`, `<mark>RFC</mark>`, `differs: <b>layout</b> RFC → siw`,
		"RFC 5044, by section",
	} {
		if !strings.Contains(dom, want) {
			t.Errorf("the page has not become one with %s", want)
		}
	}
	if strings.Contains(dom, "<mark>0x") {
		t.Error("an STag is marked")
	}
}

// TestInBrowserNarrow: with everything open, nothing is wider than the window of a phone. Each link
// leads to something, except for the link to a requirement that the catalogue lacks.
func TestInBrowserNarrow(t *testing.T) {
	t.Parallel()
	dom := browse(t, probed(html(t, synthetic(t, t.TempDir()))), "", 400)
	for _, want := range []string{
		`data-width="400"`, `data-wide="none"`, `data-marked="4 5"`, `data-shown="5 of 5 scenarios"`, "<td>siw</td>",
		"≠ layout", `data-dead="requirement/X-1-01"`, "<code>order/not-run</code>",
	} {
		if !strings.Contains(dom, want) {
			_, at, _ := strings.Cut(dom, "<html")
			t.Errorf("the page has no %s, but begins %.300s", want, at)
		}
	}
}

// opening opens and closes parts of the page as a reader does, and notes the addresses.
const opening = `<script>
const wait = setInterval(async () => {
  if (document.documentElement.dataset.ready !== "yes") return;
  clearInterval(wait);
  const addresses = [];
  const press = async (id) => {
    while (!byId(id)) await new Promise((r) => setTimeout(r, 10)); // what opens is filled later
    byId(id).querySelector("summary").click();
    addresses.push(location.hash);
  };
  await press("scenario/queue/receive-empty");
  await press("run/queue/receive-empty/engine/kernel");
  await press("scenario/queue/receive-empty");
  await press("document/RFC 5041");
  await press("section/RFC 5041/5.2");
  for (let n = 0; n < 2; n++) { // it is open, because the window is wide
    document.querySelector(".area summary").click();
    addresses.push(location.hash);
  }
  document.documentElement.dataset.addresses = addresses.join(" ");
}, 20);
</script>`

// TestInBrowserAddress: the page's address names what a reader has open, and an address opens what
// it names.
func TestInBrowserAddress(t *testing.T) {
	t.Parallel()
	page := html(t, synthetic(t, t.TempDir()))
	dom := browse(t, with(page, opening), "", 1400)
	const want = `data-addresses="#scenario/queue/receive-empty #run/queue/receive-empty/engine/kernel ` +
		`#run/queue/receive-empty/engine/kernel #document/RFC%205041 #section/RFC%205041/5.2 ` +
		`#section/RFC%205041/5.2 #area/queue"`
	if !strings.Contains(dom, want) {
		_, at, _ := strings.Cut(dom, "<html")
		t.Errorf("the page has no %s, but begins %.500s", want, at)
	}
	dom = browse(t, page, "section/RFC 5041/5.2", 1400)
	for _, want := range []string{
		`<details id="document/RFC 5041" open`,
		`<details id="section/RFC 5041/5.2" class="section" open`,
		`UNSUPPORTED, the engine has no shared receive queues (<a href="` + filesURL + `docs/support.md">`,
		"not run with kernel", "no scenario names it",
	} {
		if !strings.Contains(dom, want) {
			t.Errorf("the page has not become one with %s", want)
		}
	}
}

// TestInBrowserHostile: with everything open, no text has become markup. If some had, the page's
// policy would not let it run.
func TestInBrowserHostile(t *testing.T) {
	t.Parallel()
	page := html(t, hostile(t))
	dom := browse(t, probed(page), "", 1400)
	if !strings.Contains(dom, `data-title="govs conformance: not passed"`) ||
		strings.Contains(dom, "<img") || strings.Contains(dom, `href="javascript`) {
		t.Errorf("text of a report has become markup, or the script failed: %.300s", dom)
	}
	const at = "<h2>To look at"
	dom = browse(t, strings.Replace(page, at, `<script>document.title="taken"</script>`+
		`<img src="x" onerror="document.title='taken'">`+at, 1), "", 1400)
	if !strings.Contains(dom, `data-ready="yes"`) || !strings.Contains(dom, "<img") ||
		strings.Contains(dom, "<title>taken") {
		t.Errorf("a script ran that is not the page's: %.300s", dom)
	}
}

// TestInBrowserOld: a browser that can't unpack the data says so.
func TestInBrowserOld(t *testing.T) {
	t.Parallel()
	page := strings.Replace(probed(html(t, synthetic(t, t.TempDir()))), "<main>",
		"<main><script>delete globalThis.DecompressionStream</script>", 1)
	dom := browse(t, page, "", 400)
	if !strings.Contains(dom, "this browser lacks DecompressionStream") ||
		!strings.Contains(dom, "✗ 1 FAIL") {
		t.Errorf("the page does not say that it can't be shown: %.300s", dom)
	}
}
