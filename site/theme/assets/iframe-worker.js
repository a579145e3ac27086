// A page that was opened from a disk may start no worker. Here a hidden frame stands in for one, so that the search
// works without a server; with a server nothing is changed.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      const inside = this.frame.contentWindow;
      addEventListener("message", (event) => {
        if (event.source !== inside) return;
        const copy = new MessageEvent("message", { data: event.data });
        this.dispatchEvent(copy);
        if (this.onmessage) this.onmessage(copy);
      });
      this.ready = new Promise((loaded) => (this.loaded = loaded));
      inside.loaded = this.loaded;
      const address = new URL(url, location.href);
      inside.document.open();
      inside.document.write(
        "<script>self.postMessage = (data) => parent.postMessage(data, '*');" +
          "self.importScripts = (...files) => files.reduce((before, file) => before.then(() => new Promise((done) => {" +
          `const script = document.createElement("script"); script.src = new URL(file, "${address}");` +
          "script.onload = done; document.body.appendChild(script); })), Promise.resolve());</" +
          `script><body><script src="${address}" onload="loaded()"></` +
          "script>",
      );
      inside.document.close();
    }
    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      this.frame.remove();
    }
  };
