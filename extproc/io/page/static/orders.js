// Orders: allowed with the operator's token, which this tab alone keeps, and which goes nowhere but to this gateway.
import { toast } from "./dom.js";

const KEY = "kvsteer-token";
let allowed = false;

export const token = () => sessionStorage.getItem(KEY) || "";
export const unlocked = () => allowed && token() !== "";
export function allow(value) { allowed = value; }
export function lock() { sessionStorage.removeItem(KEY); }

// Take a token, if the gateway knows it; what is wrong with it, or "".
export async function unlock(typed) {
  const text = typed.trim();
  if (/[^\x21-\x7e]/.test(text)) return "This can't be the token: one has no spaces and only letters, digits and signs of ASCII. Was something else pasted?";
  try {
    const answer = await fetch("page/token", { method: "POST", headers: { authorization: `Bearer ${text}` } });
    if (!answer.ok) return (await answer.json()).error || `status ${answer.status}`;
    sessionStorage.setItem(KEY, text);
    return "";
  } catch (error) {
    return `No answer: ${error.message}`;
  }
}

export async function order(path, done) {
  try {
    const answer = await fetch(path, { method: "POST", headers: { authorization: `Bearer ${token()}` } });
    const said = await answer.json();
    if (!answer.ok) { toast(said.error || `status ${answer.status}`); return null; }
    toast(said.reaches ? `${done} (${said.reaches})` : done);
    return said;
  } catch (error) {
    toast(`No answer: ${error.message}`);
    return null;
  }
}
