// The search of the site runs in a worker, and browsers start no worker for a page that was opened
// from disk. Such a page gets this class instead, which runs the script in a hidden frame. The
// name of this file keeps the offline plugin from loading a script of this name from another host.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.inside.document.open(); // otherwise Firefox replaces the empty document later
      this.inside.document.close();
      this.inside.postMessage = (data) => window.postMessage({ worker: `${url}`, data }, "*");
      this.inside.importScripts = async (...urls) => {
        for (const one of urls) await this.load(one);
      };
      window.addEventListener("message", (event) => {
        if (event.data?.worker === `${url}`) {
          this.dispatchEvent(new MessageEvent("message", { data: event.data.data }));
        }
      });
      this.loaded = this.load(url);
    }

    load(url) {
      return new Promise((resolve, reject) => {
        const script = this.inside.document.createElement("script");
        script.src = url;
        script.onload = resolve;
        script.onerror = reject;
        this.inside.document.body.append(script);
      });
    }

    async postMessage(data) {
      await this.loaded;
      this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data }));
    }
  };
}
