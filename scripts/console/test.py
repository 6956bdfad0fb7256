"""The web console in Chromium: logs in by the link, looks at every page narrow and wide, light and dark, asks axe whether people with
disabilities can use it, walks through it by keyboard alone, and manages peers. Screenshots go into the directory that is named last."""

import base64
import http.server
import io
import json
import sys
import tempfile
import threading
from pathlib import Path

from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from stage import Stage, eventually

PROGRAM, AXE, WORK, SCREENSHOTS = sys.argv[1:]
WIDTHS = {"narrow": (360, 740), "wide": (1280, 900)}
PAGES = {
    "overview": "/",
    "volumes": "/volumes",
    "volume": "/volume?name=vault",
    "damaged": "/volume?name=records",
    "sessions": "/sessions",
    "peers": "/peers",
}
# What a person reaches by Tab.
CONTROLS = "a[href], button:not([hidden]), input:not([type=hidden]), select, textarea"


class Browser:
    def __init__(self):
        options = webdriver.ChromeOptions()
        for argument in ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars", "--lang=en"]:
            options.add_argument(argument)
        options.add_argument(f"--user-data-dir={tempfile.mkdtemp(dir=WORK)}")
        options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
        service = Service("/usr/bin/chromedriver")
        self.driver = webdriver.Chrome(options=options, service=service)
        self.driver.set_script_timeout(60)

    def open(self, url):
        self.driver.get(url)

    def shape(self, width, scheme):
        wide, high = WIDTHS[width]
        metrics = {"width": wide, "height": high, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)

    def text(self):
        # By a script: what is found may be exchanged before it is read.
        return self.driver.execute_script("return document.body ? document.body.innerText : '';")

    def wait_for(self, text):
        eventually(f"{text!r} in {self.driver.current_url}: {self.text()}", lambda: text in self.text())

    def find(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def screenshot(self, name):
        shot = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
        image = Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")
        image.quantize(64, dither=Image.Dither.NONE).save(Path(SCREENSHOTS) / f"{name}.png", optimize=True)

    def check_accessibility(self, where):
        self.driver.execute_script(Path(AXE).read_text(encoding="utf-8"))
        found = self.driver.execute_async_script(
            "const done = arguments[arguments.length - 1]; axe.run(document).then(done, (error) => done({ error: String(error) }));"
        )
        assert "error" not in found, found
        violations = [(one["id"], one["help"], [node["html"][:200] for node in one["nodes"]]) for one in found["violations"]]
        assert not violations, f"{where}: {json.dumps(violations, indent=1)}"
        assert len(found["passes"]) > 10, f"{where}: axe looked at nothing"

    def check_width(self, where):
        wide = self.driver.execute_script(
            "return [document.documentElement.scrollWidth, document.documentElement.clientWidth];"
        )
        assert wide[0] <= wide[1], f"{where}: {wide[0]} pixels on a screen of {wide[1]}"

    def walk(self, where):
        """By Tab through all of the page: every control is reached, once, and one sees where one is."""
        mark = f"return [...document.querySelectorAll(\"{CONTROLS}\")].filter((one) => one.checkVisibility()).length;"
        expected = self.driver.execute_script(mark)
        self.driver.execute_script("document.activeElement.blur(); window.scrollTo(0, 0); window.walked = new Set();")
        step = """
            const at = document.activeElement;
            if (at === document.body || window.walked.has(at)) return null;
            window.walked.add(at);
            const style = getComputedStyle(at), box = at.getBoundingClientRect();
            const seen = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
            const inside = box.width > 0 && box.height > 0 && box.right > 0 && box.bottom > 0;
            return [at.tagName + " " + (at.id || at.textContent.trim()), seen, inside];
        """
        reached = 0
        while True:
            self.press(Keys.TAB)
            at = self.driver.execute_script(step)
            if at is None:
                break
            reached += 1
            assert at[1] and at[2], f"{where}: one does not see that {at[0]} has the focus"
        assert reached >= expected > 4, f"{where}: {reached} of {expected} controls are reached by Tab"

    def press(self, *keys):
        webdriver.ActionChains(self.driver).send_keys(*keys).perform()

    def requests(self):
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]

    def complaints(self):
        return [entry["message"] for entry in self.driver.get_log("browser")]


class OtherServer(http.server.BaseHTTPRequestHandler):
    """Another server on this machine, which keeps what it is sent."""

    cookies = []

    def do_GET(self):
        OtherServer.cookies.append(self.headers.get("Cookie"))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"another server")

    def log_message(self, *_):
        pass


def log_in(browser, link):
    origin, token = link.split("/login#")
    browser.open(link)
    browser.wait_for("Overview")
    address = browser.driver.current_url
    assert token not in address and address.startswith(f"{origin}/console-"), address
    base = address.rstrip("/")
    cookies = browser.driver.get_cookies()
    assert browser.driver.execute_script("return document.cookie") == "", "a script sees the cookie"
    assert cookies and cookies[0]["httpOnly"] and cookies[0]["sameSite"] == "Strict", cookies
    # It is not in what "back" returns to, either.
    length = browser.driver.execute_script("return history.length")
    browser.driver.back()
    assert token not in browser.driver.current_url and length < 4
    browser.open(base + "/")
    return origin, base


def check_pages(browser, base):
    for scheme in ["light", "dark"]:
        for width in WIDTHS:
            browser.shape(width, scheme)
            for page, path in PAGES.items():
                where = f"{page}-{width}-{scheme}"
                browser.open(base + path)
                if page == "overview":
                    eventually("the line of rates", lambda: browser.driver.find_elements(By.CSS_SELECTOR, "polyline"))
                browser.check_width(where)
                browser.check_accessibility(where)
                browser.screenshot(where)
    print("console: pages are as wide as the screen, and axe finds nothing wrong with them")


def check_keyboard(browser, base):
    for width in WIDTHS:
        browser.shape(width, "light")
        for page, path in PAGES.items():
            browser.open(base + path)
            browser.walk(f"{page}, {width}")
    browser.open(base + "/")
    browser.press(Keys.TAB, Keys.ENTER)
    assert browser.driver.switch_to.active_element.get_attribute("id") == "main", "the skip link leads to the content"
    print("console: every control is reached by keyboard, and one sees where one is")


def check_live(browser, base):
    browser.open(base + "/")
    marked = "window.sameDocument = true;"
    browser.driver.execute_script(marked)
    values = set()

    def changes():
        values.add(browser.driver.execute_script("return document.querySelector('.value').textContent;"))
        return len(values) > 2

    eventually(f"rates change: {values}", changes)
    assert browser.driver.execute_script("return window.sameDocument;"), "the page was loaded again"
    # Who is in the middle of the page stays there.
    browser.open(base + "/volumes")
    link = next(one for one in browser.driver.find_elements(By.CSS_SELECTOR, "table a") if one.text == "vault")
    browser.driver.execute_script("arguments[0].focus(); window.first = arguments[0];", link)
    eventually("the table is exchanged", lambda: not browser.driver.execute_script("return window.first.isConnected;"))
    assert browser.driver.switch_to.active_element.text == "vault"
    print("console: rates are live, and the focus stays where it is")


def check_peers(browser, base, stage):
    browser.open(base + "/peers")
    browser.wait_for("<script>alert(1)</script>")
    # By keyboard alone.
    browser.find("#name").send_keys("bob")
    for _ in range(12):
        browser.press(Keys.TAB)
        if browser.driver.switch_to.active_element.get_attribute("value") == "vault":
            break
    browser.press(Keys.SPACE)
    Select(browser.find("#expires")).select_by_visible_text("10 minutes")
    browser.find("#address").send_keys(Keys.ENTER)
    browser.wait_for("shown this once")
    invitation = browser.find("#invitation").get_attribute("value")
    for width in WIDTHS:
        browser.shape(width, "light")
        browser.check_width("invitation")
        browser.check_accessibility("invitation")
        browser.walk("invitation")
    # A picture has none that is good for something.
    browser.driver.execute_script("document.getElementById('invitation').value = 'strongroom-invitation1:…';")
    browser.screenshot("invitation-wide-light")
    stage.join(invitation, "bob")
    browser.open(base + "/peers")
    browser.wait_for("bob")
    browser.find("a[href$='/peers/remove?name=bob']").send_keys(Keys.ENTER)
    browser.wait_for("its sessions end at once")
    browser.check_accessibility("removal")
    browser.find("button.danger").send_keys(Keys.ENTER)
    browser.wait_for("is no peer any more")
    # One that is not used is revoked.
    browser.open(base + "/peers")
    browser.find("#name").send_keys("carol")
    browser.find("#volume-all").send_keys(Keys.SPACE)
    browser.find("button.primary").send_keys(Keys.ENTER)
    browser.wait_for("shown this once")
    browser.open(base + "/peers")
    browser.wait_for("carol")
    browser.find("#live-invitations button").send_keys(Keys.ENTER)
    eventually("it is revoked", lambda: "carol" not in browser.text() and "Peers" in browser.text())
    # What is refused is said, where it is heard, and nothing that was typed is lost.
    browser.find("#name").send_keys("no good name")
    browser.find("#volume-all").send_keys(Keys.SPACE)
    browser.find("button.primary").send_keys(Keys.ENTER)
    browser.wait_for("cannot name a peer")
    assert browser.find("[role=alert]") and browser.find("#name").get_attribute("value") == "no good name"
    assert browser.find("#volume-all").is_selected()
    browser.check_accessibility("refused")
    print("console: a machine is invited, joins, and is removed; an invitation is revoked")


def check_target_away(browser, base, stage):
    browser.open(base + "/")
    browser.driver.execute_script("window.sameDocument = true;")
    stage.stop_target()
    browser.wait_for("No target answers at")
    assert browser.driver.execute_script("return window.sameDocument;")
    browser.open(base + "/volumes")
    browser.wait_for("strongroom serve")
    browser.check_accessibility("away")
    browser.shape("wide", "light")
    browser.screenshot("away-wide-light")
    stage.serve()
    browser.wait_for("Volumes of this target")
    print("console: a target that goes away and comes back is shown so")


def check_strangers(browser, origin, base, link):
    other = Browser()
    other.open(link)
    other.wait_for("used already")
    other.check_accessibility("used link")
    assert other.find("[role=alert]")
    other.open(base + "/")
    other.wait_for("not logged in")
    other.check_accessibility("not logged in")
    other.driver.quit()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), OtherServer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    browser.open(f"http://127.0.0.1:{server.server_port}/")
    browser.wait_for("another server")
    # A form of that other server.
    browser.driver.execute_script(
        "fetch(arguments[0], { method: 'POST', mode: 'no-cors', credentials: 'include', body: new URLSearchParams({ name: 'x' }) });",
        f"{base}/logout",
    )
    assert all(cookie is None for cookie in OtherServer.cookies), OtherServer.cookies
    browser.open(base + "/")
    browser.wait_for("Attention")
    print("console: the link is good once; another server on this machine sees no cookie and does nothing")


def main():
    stage = Stage(PROGRAM, tempfile.mkdtemp(dir=WORK))
    browser = None
    try:
        stage.prepare()
        stage.serve()
        stage.fill()
        stage.stop_target()
        stage.damage("records")
        stage.serve()
        stage.attach("records", key=False, more=["--read-only"])
        stage.load(stage.attach("vault"))
        console, link = stage.console()
        browser = Browser()
        origin, base = log_in(browser, link)

        def damage_is_found():
            browser.open(base + PAGES["damaged"])
            return "strongroom volume recover" in browser.text()

        eventually("the damaged blocks are found", damage_is_found)
        check_pages(browser, base)
        check_keyboard(browser, base)
        check_live(browser, base)
        check_peers(browser, base, stage)
        requests, complaints = browser.requests(), browser.complaints()
        outside = [url for url in requests if not url.startswith((origin + "/", "chrome:", "data:"))]
        assert len(requests) > 50 and not outside, f"requests elsewhere: {outside}"
        refused = [one for one in complaints if "422" not in one]
        assert not refused, f"the browser complains: {refused}"
        check_strangers(browser, origin, base, link)
        check_target_away(browser, base, stage)
        console.kill()
        browser.wait_for("The console does not answer")
        print("console: all is well; no request went elsewhere")
    finally:
        if browser:
            browser.driver.quit()
        stage.end()


main()
